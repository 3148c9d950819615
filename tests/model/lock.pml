/* One lock, its queue and its sessions, as the scripts and generators of the protocol make them.

   A session is one acquisition with a token of its own, in a process of its own. Sessions begin at
   any time, so two may be one caller that comes twice. What a call or a message does at the other
   end is a step of its own. Within a tick of the clock steps come in any order. A tick waits for
   what is prompt: calls, answers, heartbeats, reading a grant. Each exception is one of FAULTS:
   a session whose calls take any time (slow), a call sent again, which leaves a late one behind, a
   call carried out twice, a message that is lost, a process that is stopped or dead. */
#define CLAIM 2 /* ticks within which a grant must be claimed; it is trusted in the first half */
#define BEAT 1 /* within which a process that runs is seen */
#define GONE 3 /* after which one that was not seen waits no more */
#define VAIN 2 /* heartbeats until a waiter beside a free lock has it */
#define NONE 255
#define FAR 254
#define MANY 100 /* holders: one that has the lock alone */
#define ALONE 0 /* limits: alone, with any number of others, or with at most so many */
#define ALL 90
#ifdef L0
#define lim(s) ((s) == 0 -> L0 : ((s) == 1 -> L1 : L2))
#define in_turn(s) 1
#else
#define lim(s) ALONE
#define in_turn(s) (s == 0 || pc[s - (s > 0)] != NEW) /* they are alike */
#endif
#define shares(s) (lim(s) != ALONE)
#define most(s) (lim(s) == ALONE -> 1 : (lim(s) == ALL || operator >= FAR -> lim(s) : operator))
#define fits(s) (c < most(s) + (BROKEN == LIMIT))
#define left(s) (due[s] < until[s] -> due[s] : until[s])
#define believes(s) (pc[s] == HOLD && bel[s] && sure[s])
#define runs(s) (!dead[s] && !stop[s])
#define acts(s) (pc[s] != NEW && pc[s] != DONE)
#define waits(s) ((pc[s] == WAIT || pc[s] == ASK) && known[s])
#define sent(s) (acq[s] || rel[s] || wd[s] || back[s] || fg[s] || cb[s] || cl[s] || ren[s] == 1)
#define each(s) for (s : 0 .. N - 1)
#define when(condition, act) if :: condition -> act :: else fi
#define lower(x, y) when((y) < x, x = (y))
#define down(ticks) when(ticks > 0 && ticks < FAR, ticks--)

mtype = { NEW, ASK, WAIT, HOLD, DONE };
mtype = { SOUND, TOKEN, DUE, FENCE, PASS, ORDER, LIMIT, BARGE, CLOCK, STALE }; /* for BROKEN */

/* The server. Of each token: a hold, the end of its lease, when its claim is due (NONE: it is
   claimed), its fence; an entry, its position, whether its process is in the queue; ticks since it
   was seen, a message for it: it did not claim in time. Then when a heartbeat checks the lock. */
bit held[N], ent[N], inq[N], lost[N];
byte until[N], due[N], fence[N], pos[N], seen[N] = NONE, last, mark = NONE, operator = NONE;

/* The network. Calls: acquire, one that comes too late to be answered, release, withdraw, give back
   what is not claimed, forget, come back, claim (a fence), renew (1: sent, 2: good, 3: refused).
   Answers to acquire: 1 waits, 2 has it. Grants: one, an older one, when a claim is due, a fence. */
bit acq[N], late[N], rel[N], back[N], fg[N], cb[N], msg[N], old[N];
byte wd[N], cl[N], ren[N], ans[N], msg_due[N], msg_fence[N];

/* The clients: where they are; until when they believe that they hold, by when they must be sure of
   their claim, what a renewal under way allows; what their process does. dead: 2: with its host. */
mtype pc[N] = NEW;
bit known[N], must[N], beat[N], asks[N], stop[N], slow[N];
byte bel[N], sure[N], rbel[N], dead[N], faults = FAULTS;

/* The verdicts. excused: a call that came late has taken the lock or a position, or claimed. */
bit exclusive = 1, backed = 1, rising = 1, woken = 1, fair = 1, excused[N];
byte began, vain;
hidden byte a, b, c, i, k, w, n, owner, soon, youngest, tb, blocked, ours, queue, permits, gone;

inline look() { /* who has it alone, whether there are permits, whether processes wait */
  owner = N; permits = 0; queue = 0;
  each(k) {
    when(due[k] == NONE && until[k] == 0, held[k] = 0);
    if :: held[k] && shares(k) -> permits = 1 :: held[k] && !shares(k) -> owner = k :: else fi;
    queue = queue || inq[k]
  }
}
inline silence(s) { inq[s] = 0; seen[s] = NONE; lost[s] = 1 }
inline take_back(s) { silence(s); held[s] = 0; tb = 1 }
inline purge() { /* remove permits that have ended, count the others as c */
  c = (owner < N -> MANY : 0);
  each(k) {
    when(held[k] && shares(k) && !left(k), when(due[k] != NONE, take_back(k)); held[k] = 0);
    when(held[k] && shares(k), c++)
  }
}
inline give(s, claim_by) { /* and judge it */
  when(c == 0, each(b) { held[b] = 0 });
  when(BROKEN != FENCE || claim_by == NONE, last++);
  n = 0;
  each(b) {
    when(b != s && (believes(b) || (held[b] && left(b))), n = n + (shares(b) -> 1 : MANY));
    fair = fair && !(b != s && ent[b] && inq[b] && runs(b) && pc[b] == WAIT
      && (!ent[s] || pos[b] < pos[s])) }
  exclusive = exclusive && n < most(s); rising = rising && last > began; began = last;
  ent[s] = 0; inq[s] = 0; held[s] = 1; fence[s] = last; until[s] = LEASE; due[s] = claim_by
}
inline first() { /* the first waiter w whose process is seen, N if there is none */
  do
  :: w = N; youngest = NONE;
     each(k) { lower(youngest, seen[k]);
       when(inq[k] && (w == N || (BROKEN == ORDER -> pos[k] > pos[w] : pos[k] < pos[w])), w = k) }
     if
     :: w == N || (ent[w] && seen[w] < NONE && seen[w] - youngest <= (tb -> BEAT : GONE)) ->
        break
     :: else -> inq[w] = 0
     fi
  od
}
inline hand_off(own) { /* beside c holders; tb: one was taken back */
  blocked = 0; soon = NONE;
  do
  :: c == MANY -> break
  :: else ->
     first();
     if
     :: w == N -> break
     :: w < N && c > 0 && held[w] -> ent[w] = 0; inq[w] = 0
     :: w < N && !(c > 0 && held[w]) && !fits(w) -> blocked = 1; break
     :: else ->
        give(w, (w == own -> NONE : CLAIM));
        if
        :: w != own && dead[w] == 1 && seen[w] - youngest > BEAT -> /* it reaches no process */
           held[w] = 0; silence(w)
        :: else -> c = (shares(w) -> c + 1 : MANY); lower(soon, left(w));
           when(w != own, old[w] = msg[w]; msg[w] = 1; msg_due[w] = CLAIM; msg_fence[w] = last)
        fi
     fi
  od;
  look(); when(queue && BROKEN != DUE, lower(mark, soon))
}
inline serve() { when(owner == N, purge(); hand_off(N)) }
inline check_at_end() { /* have the lock checked when the next lease or claim ends */
  soon = FAR; each(k) { when(held[k], lower(soon, left(k))) } lower(mark, soon)
}
inline join(s) { when(!ent[s] && !known[s], last++; pos[s] = last); ent[s] = 1; inq[s] = 1 }
#define count(x) when(x, lower(n, x))
#define shift(x) when(x, x = x - n)
inline tidy() { /* forget what has no meaning any more, and count from the oldest that has */
  n = began;
  each(k) {
    when(!held[k], until[k] = 0; due[k] = 0; fence[k] = 0);
    excused[k] = excused[k] && (held[k] || ent[k]);
    when(pc[k] == DONE && !ent[k] && !cb[k], pos[k] = 0);
    count(pos[k]); count(fence[k]); count(msg_fence[k]); count(cl[k])
  }
  n = (n > 1 -> n - 1 : 0); last = last - n; began = began - n;
  each(k) { shift(pos[k]); shift(fence[k]); shift(msg_fence[k]); shift(cl[k]) }
  skip
}
inline acquire(s) {
  tb = 0; blocked = 0; look();
  when(owner < N || permits || queue, seen[s] = 0);
  purge(); ours = held[s];
  when(ours, due[s] = NONE; when(until[s] == 0, held[s] = 0; c = 0));
  when(owner < N && due[owner] == 0, take_back(owner); c = 0);
  when(known[s] && !ours, join(s));
  if
  :: c == 0 || (permits && !ours) -> hand_off(s);
     when((!blocked || BROKEN == BARGE) && c < most(s) && !held[s], give(s, NONE))
  :: else -> when(permits, hand_off(N))
  fi;
  when(!held[s], join(s); check_at_end()); tidy()
}
inline release(s, leaves, unclaimed) {
  tb = 0; look();
  ours = held[s] && (!shares(s) || left(s)) && (!unclaimed || due[s] < NONE);
  ours = ours && !(BROKEN == PASS && leaves && due[s] < NONE);
  when(BROKEN == TOKEN && !leaves && !unclaimed && owner < N, ours = 1; held[owner] = 0; owner = N);
  when(ours, held[s] = 0; when(owner == s, owner = N));
  when(leaves, ent[s] = 0; inq[s] = 0); when(ours || leaves || permits, serve()); tidy()
}
inline attend() {
  mark = NONE; tb = 0; look();
  when(queue, when(owner < N && due[owner] == 0, take_back(owner); owner = N); serve();
    look(); when(queue, check_at_end()))
}
inline heartbeat(s) {
  seen[s] = 0; look(); when(!queue || mark == NONE, attend());
  gone = !ent[s]; when(ent[s], inq[s] = 1);
  when(mark <= 1, attend()); tidy()
}
inline come_back(s) {
  look();
  if :: held[s] && (!shares(s) || left(s)) -> must[s] = waits(s)
  :: else -> fg[s] = !waits(s); excused[s] = excused[s] || fg[s];
     when(!ent[s] || !inq[s], ent[s] = 1; inq[s] = 1; lower(mark, 0); beat[s] = waits(s)) fi
}
inline ask(s) { pc[s] = ASK; acq[s] = 1; ans[s] = 0; must[s] = 0; bel[s] = LEASE }
inline finish(s) { /* also forget what this process needs no more */
  pc[s] = DONE; bel[s] = 0; sure[s] = 0; rbel[s] = 0; ren[s] = ren[s] == 1; acq[s] = 0; ans[s] = 0;
  must[s] = 0; asks[s] = 0; beat[s] = 0; lost[s] = 0; known[s] = known[s] && cb[s]; tidy()
}
inline drop_grant(s) { msg[s] = 0; msg_due[s] = 0; msg_fence[s] = 0 }
#define on(condition) condition -> i = _pid

active [N] proctype Session() {
end:
  do /* What the server does. */
  :: d_step { on(acq[_pid]); acq[i] = 0; acquire(i); ans[i] = 1 + held[i]; n = LEASE - bel[i];
       when(held[i] && BROKEN != CLOCK, bel[i] = (until[i] > n -> until[i] - n : 0)); skip }
  :: d_step { on(late[_pid]); late[i] = 0; acquire(i); excused[i] = 1; tidy() }
  :: d_step { on(rel[_pid]); rel[i] = 0; release(i, 0, 0) }
  :: d_step { on(wd[_pid]); wd[i]--; release(i, 1, 0) }
  :: d_step { on(back[_pid]); back[i] = 0; release(i, 0, 1) }
  :: d_step { on(fg[_pid]); fg[i] = 0; ent[i] = 0; inq[i] = 0; tb = 0; look(); serve(); tidy() }
  :: d_step { on(cb[_pid]); cb[i] = 0; come_back(i); tidy() }
  :: d_step { on(cl[_pid]); look();
       when(held[i] && due[i] < NONE && (shares(i) -> left(i) > 0 : fence[i] == cl[i]),
         due[i] = NONE; excused[i] = pc[i] == DONE);
       cl[i] = 0; look(); tidy() }
  :: d_step { on(ren[_pid] == 1); look(); ren[i] = 3;
       when(held[i] && (shares(i) -> left(i) : until[i]),
         excused[i] = excused[i] || (pc[i] == DONE && due[i] < NONE);
         due[i] = NONE; until[i] = LEASE; ren[i] = 2);
       ren[i] = (pc[i] == DONE -> 0 : ren[i]) }
  /* What a process does that runs. */
  :: d_step { on(pc[_pid] == NEW && in_turn(_pid)); ask(i) }
  :: d_step { on(runs(_pid) && ans[_pid] == 1); ans[i] = 0; bel[i] = 0; known[i] = 1; pc[i] = WAIT }
  :: d_step { on(runs(_pid) && ans[_pid] == 2); ans[i] = 0; sure[i] = NONE; pc[i] = HOLD;
       bel[i] = (BROKEN == CLOCK -> LEASE : bel[i]) }
  :: d_step { on(runs(_pid) && pc[_pid] == ASK); /* it is interrupted, or out of time */
       late[i] = late[i] || acq[i]; wd[i] = 1 + late[i]; finish(i) }
  :: d_step { on(runs(_pid) && pc[_pid] == WAIT && !msg[_pid] && !old[_pid]); wd[i] = 1; finish(i) }
  :: d_step { on(runs(_pid) && pc[_pid] == WAIT && (must[_pid] || old[_pid])); old[i] = 0; ask(i) }
  :: d_step { on(runs(_pid) && pc[_pid] == WAIT && msg[_pid] && !old[_pid]);
       if :: msg_due[i] < CLAIM / 2 && BROKEN != STALE -> ask(i)
       :: else -> pc[i] = HOLD; must[i] = 0; cl[i] = msg_fence[i];
          bel[i] = LEASE - CLAIM + msg_due[i]; sure[i] = (BROKEN == STALE -> NONE : msg_due[i]) fi;
       drop_grant(i) }
  :: d_step { on(runs(_pid) && (pc[_pid] == DONE || pc[_pid] == HOLD) && (msg[_pid] || old[_pid]));
       back[i] = 1; if :: old[i] -> old[i] = 0 :: else -> drop_grant(i) fi; skip }
  :: d_step { on(runs(_pid) && believes(_pid) && !ren[_pid]
         && (sure[_pid] < NONE || 3 * bel[_pid] <= 2 * LEASE)); ren[i] = 1; rbel[i] = LEASE }
  :: d_step { on(runs(_pid) && pc[_pid] == HOLD && ren[_pid] == 2);
       ren[i] = 0; bel[i] = rbel[i]; sure[i] = NONE; rbel[i] = 0 }
  :: d_step { on(runs(_pid) && pc[_pid] == HOLD && ren[_pid] == 3); finish(i) }
  :: d_step { on(runs(_pid) && pc[_pid] == HOLD); rel[i] = 1; finish(i) } /* it is over, or lost */
  :: d_step { on(runs(_pid) && beat[_pid]); heartbeat(i);
       cb[i] = cb[i] || gone || asks[i]; asks[i] = lost[i]; beat[i] = lost[i]; lost[i] = 0 }
  :: d_step { on(stop[_pid]); stop[i] = 0; beat[i] = waits(i) }
  /* Faults: a message, a heartbeat or its answer is lost, and the like. */
  :: d_step { on(faults && runs(_pid) && pc[_pid] == ASK); faults--;
       late[i] = late[i] || acq[i]; ask(i) }
  :: d_step { on(faults && rel[_pid]); faults--; release(i, 0, 0) }
  :: d_step { on(faults && msg[_pid]); faults--; drop_grant(i) }
  :: d_step { on(faults && msg[_pid] && waits(_pid)); faults--; drop_grant(i); asks[i] = 1 }
  :: d_step { on(faults && beat[_pid]); faults--; asks[i] = 1 }
  :: d_step { on(faults && beat[_pid]); faults--; heartbeat(i); lost[i] = 0; asks[i] = 1 }
  :: d_step { on(faults && !slow[_pid] && sent(_pid)); faults--; slow[i] = 1 }
  :: d_step { on(faults && runs(_pid) && acts(_pid)); faults--; stop[i] = 1 }
  :: d_step { on(faults && runs(_pid) && acts(_pid)); faults--; dead[i] = 2 }
  :: d_step { on(faults && runs(_pid) && acts(_pid)); faults--; dead[i] = 1;
       drop_grant(i); old[i] = 0 }
  od
}

#define reacts(s) (runs(s) && (beat[s] || (pc[s] == WAIT && (msg[s] || old[s] || must[s])) \
  || (pc[s] == HOLD && (!believes(s) || ren[s] > 1))))
#define prompt(s) (reacts(s) || (!slow[s] && (sent(s) || (runs(s) && ans[s]))))
#define idle(s) (runs(s) && pc[s] == DONE && !(late[s] || sent(s) || msg[s] || old[s]))

inline count_vain() { /* Is a lock held for none? Could the first live waiter w have it? */
  n = 0; w = N;
  each(k) {
    when(excused[k], n = MANY);
    when(held[k] && left(k) && !excused[k],
      n = n + (shares(k) -> 1 : MANY); woken = woken && !idle(k));
    when(runs(k) && waits(k) && (w == N || pos[k] < pos[w]), w = k)
  }
  vain = (w == N -> 0 : (n < most(w) && pc[w] == WAIT && !cb[w] -> vain + 1 : 0));
  woken = woken && vain <= VAIN
}
active proctype Clock() {
  do
  :: d_step { !prompt(0) && !prompt(1) && !prompt(N - 1) -> count_vain(); down(mark);
       each(a) {
         when(held[a], down(until[a]); down(due[a]));
         down(msg_due[a]); down(bel[a]); down(sure[a]); down(rbel[a]);
         when(seen[a] <= GONE, seen[a]++);
         beat[a] = runs(a) && waits(a) && (!msg[a] || msg_due[a]) } /* not if it does not react */
       skip }
#ifdef OPERATOR
  :: d_step { operator != FAR -> operator = (operator == NONE -> OPERATOR : FAR);
       tb = 0; look(); serve(); tidy() }
#endif
  od
}
#define clash(s, t) (s != t && believes(s) && believes(t) && !(shares(s) && shares(t)))
#define unbacked(s) (believes(s) \
  && (!held[s] || until[s] < bel[s] || (due[s] < NONE && due[s] < sure[s])))
active proctype Judge() {
end:
  do
  :: d_step { clash(0, 1) || clash(0, N - 1) || clash(1, N - 1) -> exclusive = 0 }
  :: d_step { unbacked(0) || unbacked(1) || unbacked(N - 1) -> backed = 0 }
  :: d_step { !exclusive || !backed || !rising || !woken || !fair ->
       assert(exclusive); assert(backed); assert(rising); assert(woken); assert(fair) }
  od
}
