/* Buys one unit and shows the result, which the buy view sends as JSON. */
"use strict";
{
    const told = document.getElementById("answer");
    told.textContent = sessionStorage.getItem("answer") || "";
    sessionStorage.removeItem("answer");

    document.addEventListener("submit", async (event) => {
        if (!event.target.matches("[data-buy]")) {
            return;
        }
        event.preventDefault();
        const address = event.submitter.getAttribute("formaction") || event.target.action;
        const answer = await fetch(address, {
            method: "POST",
            body: new FormData(event.target),
            headers: { Accept: "application/json" },
        });
        const said = await answer.json();
        sessionStorage.setItem("answer", said.error || `Order ${said.order} placed.`);
        window.location.reload();
    });
}
