/* Messages parked in backlogs, which one entry of the lock's queue stands for, beside live waiters.
   A message of a backlog that has its turn gets the lock, goes to the outbox, is published, and its
   run takes the lock over. Of live waiters lock.pml has the rest. Each of FAULTS is a worker that
   dies as it publishes, before or after that, or as it runs, or a broker that refuses a message or
   is late with it. */
#define T (M + W) /* tokens: messages, then live waiters */
#define NONE 255 /* a turn: its limit is 0 */
#define AGAIN 2 /* ticks after which a message that was taken on is taken on again */
#define each(s, most) for (s : 0 .. most - 1)
#define when(condition, act) if :: condition -> act :: else fi
#define lower(x, y) when((y) < x, x = (y))
#define down(ticks) when(ticks > 0 && ticks < NONE, ticks--)
#define group(t) (t < M -> t % 2 : t - M + 2) /* two backlogs; each waiter for itself */
mtype = { NEW, WAIT, GRANTED, RUN, DONE };
mtype = { SOUND, LIFO, TURN, ENTRY, OUTBOX, TAKEOVER, CLOSED }; /* for BROKEN */
mtype is[T] = NEW;
byte pos[T], bel[T], out[M] = NONE, copies[M]; /* in the outbox: when it may be taken on */
byte turn[2], entry, holder = NONE, until, last, mark = NONE, faults = FAULTS, limited, vain;
byte began, since[2 + W], served[2 + W];
bit exclusive = 1, backed = 1, rising = 1, woken = 1, fair = 1, poll;
hidden byte a, b, g, i, k, m, w, n;

inline note_turn() { /* score the entry by the next turn; 0: there is none, NONE: all are closed */
  when(BROKEN != ENTRY || !entry || (!turn[0] && !turn[1]), entry = 0;
    each(k, 2) { when(turn[k] && (!entry || turn[k] < entry), entry = turn[k]) })
}
inline give(t) { /* and judge: first of its backlog, and not twice before another */
  last++; holder = t; until = LEASE; is[t] = GRANTED; rising = rising && last > began; began = last;
  each(a, T) {
    when(a != t && bel[a], exclusive = 0);
    when(is[a] == WAIT && group(a) == group(t) && pos[a] < pos[t], fair = 0);
    when(is[a] == WAIT && group(a) != group(t) && (group(a) > 1 || turn[group(a)] < NONE)
      && since[group(a)] < served[group(t)], fair = 0)
  }
  served[group(t)] = last; since[group(t)] = last
}
inline first(g) { /* the message m that is next in a backlog */
  m = T; n = 0;
  each(k, M) { when(is[k] == WAIT && group(k) == g, n++;
    when(m == T || (BROKEN == LIFO -> pos[k] > pos[m] : pos[k] < pos[m]), m = k)) }
}
inline hand_off() {
  holder = NONE; until = 0;
  do
  :: w = T;
     for (k : M .. T - 1) { when(is[k] == WAIT && (w == T || pos[k] < pos[w]), w = k) }
     if
     :: entry && entry < NONE && (w == T || entry < pos[w]) ->
        g = (turn[1] && (!turn[0] || turn[1] < turn[0]) -> 1 : 0);
        first(g);
        if :: m == T || (limited == 1 && g == 0) -> turn[g] = (m == T -> 0 : NONE); note_turn()
        :: else -> give(m); out[m] = (BROKEN == OUTBOX -> NONE : 0);
           if :: n == 1 -> turn[g] = 0 :: else -> when(BROKEN != TURN, last++; turn[g] = last) fi;
           note_turn(); break
        fi
     :: else -> when(w < T, give(w)); break
     fi
  od;
  when(holder < NONE, lower(mark, LEASE))
}
inline acquire(t) { /* or wait, at the first delivery or a later one */
  when(!until, hand_off());
  if
  :: holder == NONE && (!entry || entry == NONE) -> give(t); is[t] = RUN; bel[t] = LEASE;
     when(entry && BROKEN != CLOSED, lower(mark, LEASE)) /* for backlogs that are closed now */
  :: else ->
     last++; pos[t] = last; is[t] = WAIT;
     when(t >= M || !turn[t % 2], since[group(t)] = last; when(t < M, turn[t % 2] = last));
     note_turn(); lower(mark, until)
  fi
}
#define on(condition) condition -> i = _pid
#define goes_out (_pid < M && out[_pid % M] == 0)

active [T] proctype Token() {
end:
  do
  :: d_step { on(is[_pid] == NEW); acquire(i); skip }
  :: d_step { on(is[_pid] == GRANTED && _pid >= M); is[i] = RUN; bel[i] = until }
  :: d_step { on(goes_out && copies[_pid] < 2); copies[i]++; out[i] = NONE }
  :: d_step { on(faults && goes_out && copies[_pid] < 2); faults--; copies[i]++; out[i] = AGAIN }
  :: d_step { on(faults && goes_out); faults--; out[i] = AGAIN }
  :: d_step { on(faults && goes_out); faults--; out[i] = AGAIN; when(holder == i, hand_off());
       skip }
  :: d_step { on(faults && _pid < M && copies[_pid % M] && is[_pid] == GRANTED && holder == _pid);
       faults--; hand_off(); skip }
  :: d_step { on(_pid < M && copies[_pid % M]); copies[i]--;
       if :: is[i] != GRANTED /* it runs, has run, or is parked */
       :: else -> if :: BROKEN != TAKEOVER && (holder != i || !until) -> acquire(i)
          :: else -> last++; began = last; until = LEASE; is[i] = RUN; bel[i] = LEASE fi fi;
       skip }
  :: d_step { on(bel[_pid] && bel[_pid] < LEASE && holder == _pid); until = LEASE; bel[i] = LEASE }
  :: d_step { on(is[_pid] == RUN); is[i] = DONE; bel[i] = 0; when(holder == i, hand_off()); skip }
  :: d_step { on(faults && is[_pid] == RUN); faults--; is[i] = DONE; bel[i] = 0 }
  :: d_step { on(is[_pid] == WAIT && _pid >= M); is[i] = DONE; when(!until, hand_off()); skip }
  od
}
#define prompt(t) (t >= M -> is[t] == GRANTED : out[t % M] == 0 || copies[t % M])
active proctype Clock() {
  do
  :: d_step { poll -> poll = 0; /* by a worker */
       when(mark == 0, mark = NONE; when(!until, hand_off()); when(until, lower(mark, until)));
       skip }
  :: d_step { !poll && !prompt(0) && !prompt(1) && !prompt(2) && !prompt(T - 2) && !prompt(T - 1) ->
       n = 0;
       each(i, T) {
         when(!until && is[i] == WAIT && (group(i) > 1 || turn[group(i)] < NONE), n = 1);
         when(i < M && is[i] == GRANTED && out[i % M] == NONE && !copies[i % M], woken = 0);
         down(bel[i]); when(i < M, down(out[i % M])) }
       vain = (n -> vain + 1 : 0); woken = woken && vain < 2;
       when(until, until--); down(mark); poll = 1 }
#ifdef CLOSING
  :: d_step { limited < 2 -> limited++;
       when(limited == 2 && turn[0] == NONE, last++; turn[0] = last; since[0] = last; note_turn());
       when(!until, hand_off()); skip }
#endif
  od
}
#define unbacked(t) (bel[t] && (holder != t || until < bel[t]))
active proctype Judge() {
end:
  do
  :: d_step { unbacked(0) || unbacked(1) || unbacked(2) || unbacked(T - 2) || unbacked(T - 1) ->
       backed = 0 }
  :: d_step { !exclusive || !backed || !rising || !woken || !fair ->
       assert(exclusive); assert(backed); assert(rising); assert(woken); assert(fair) }
  od
}
