------------------------------ MODULE Receipts ------------------------------
(***************************************************************************)
(* The receipts protocol, peer to peer: when does the root of a cascade   *)
(* know that nothing of it is in flight any more?                          *)
(*                                                                         *)
(* A hop is the work on one edge, or the root's own. What a node knows is *)
(* what it has written: a crash, and the restart that follows it, is one   *)
(* step in which what was running there is lost. Messages are never taken  *)
(* out of the network, so that each may arrive late, twice, in any order,  *)
(* or, as nothing makes it arrive, not at all.                             *)
(*                                                                         *)
(* An address may have two nodes behind it, or one that has lost what it   *)
(* wrote: then there is one who says of an edge that it never will run,    *)
(* while another works on it. What helps is that its sender was told       *)
(* before that it is worked on, and has written that. So it is assumed     *)
(* here that he was: what is said to one who was not, nothing helps        *)
(* against. That two run the same edge is not modelled either.             *)
(*                                                                         *)
(* `Broken` names a rule that is left out, to see that it is needed.       *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Edges,       \* all that may be sent
    Parent,      \* from whose work each may be sent: another edge's, or the root's
    Home,        \* at which node each hop runs
    Shared,      \* edges to an address that another node has, too
    CrashesMax,  \* how many crashes there are, over all
    Broken       \* "nothing", or the rule that is left out

Root == "root"
Hops == Edges \cup {Root}

VARIABLES
    hop,      \* absent, running, waiting (for what it has sent), closed, over
    cut,      \* whether a crash has ended a hop's work: the truth
    lost,     \* and what is written of it
    edge,     \* unsent, open, closed: what the sender knows
    result,   \* done, lost, unknown: with what it is closed; "none" before
    taken,    \* whether the sender was told that it is worked on: no, yes, or forgotten
    net,      \* what is under way, for ever
    verdict,  \* what the root has been told
    crashes

vars == <<hop, cut, lost, edge, result, taken, net, verdict, crashes>>

Children(h) == {e \in Edges : Parent[e] = h}
Request(e) == <<"request", e>>
Refusal(e) == <<"refusal", e>>
Receipt(e, r) == <<"receipt", e, r>>
Question(e) == <<"question", e>>
Never(e) == <<"never", e>>

Init ==
    /\ hop = [h \in Hops |-> IF h = Root THEN "running" ELSE "absent"]
    /\ cut = [h \in Hops |-> FALSE]
    /\ lost = [h \in Hops |-> FALSE]
    /\ edge = [e \in Edges |-> "unsent"]
    /\ result = [e \in Edges |-> "none"]
    /\ taken = [e \in Edges |-> "no"]
    /\ net = {}
    /\ verdict = "none"
    /\ crashes = 0

\* An edge is written before its bytes leave.
Send(e) ==
    /\ hop[Parent[e]] = "running"
    /\ edge[e] = "unsent"
    /\ net' = net \cup {Request(e)}
    /\ \/ edge' = [edge EXCEPT ![e] = "open"]
       \/ Broken = "written before it is sent" /\ UNCHANGED edge
    /\ UNCHANGED <<hop, cut, lost, result, taken, verdict, crashes>>

\* It is run once, ever.
Arrive(e) ==
    /\ Request(e) \in net
    /\ \/ hop[e] = "absent"
       \/ Broken = "run once" /\ hop[e] \in {"closed", "over"}
    /\ hop' = [hop EXCEPT ![e] = "running"]
    /\ UNCHANGED <<cut, lost, edge, result, taken, net, verdict, crashes>>

Refuse(e) ==
    /\ Request(e) \in net
    /\ hop[e] = "absent"
    /\ net' = net \cup {Refusal(e)}
    /\ hop' = IF Broken = "refused for good" THEN hop ELSE [hop EXCEPT ![e] = "over"]
    /\ UNCHANGED <<cut, lost, edge, result, taken, verdict, crashes>>

End(h) ==
    /\ hop[h] = "running"
    /\ hop' = [hop EXCEPT ![h] = "waiting"]
    /\ UNCHANGED <<cut, lost, edge, result, taken, net, verdict, crashes>>

Told(h) == {result[e] : e \in Children(h)}
Sum(h) ==
    IF "unknown" \in Told(h) THEN "unknown"
    ELSE IF lost[h] \/ "lost" \in Told(h) THEN "lost"
    ELSE "done"

\* A receipt is given when the work has ended, and all that was sent from it is closed.
IsQuiet(h) ==
    \/ \A e \in Children(h) : edge[e] # "open"
    \/ Broken = "waits for what it has sent"
    \/ Broken = "asks after a crash" /\ lost[h]

Close(h) ==
    /\ \/ hop[h] = "waiting" /\ IsQuiet(h)
       \/ Broken = "waits for its own work" /\ hop[h] = "running" /\ IsQuiet(h)
    /\ IF h = Root
       THEN /\ verdict = "none"
            /\ verdict' = Sum(h)
            /\ UNCHANGED net
       ELSE /\ Receipt(h, Sum(h)) \notin net
            /\ net' = net \cup {Receipt(h, Sum(h))}
            /\ UNCHANGED verdict
    /\ hop' = IF hop[h] = "waiting" THEN [hop EXCEPT ![h] = "closed"] ELSE hop
    /\ UNCHANGED <<cut, lost, edge, result, taken, crashes>>

CloseEdge(e, r) ==
    /\ edge[e] = "open"
    /\ edge' = [edge EXCEPT ![e] = "closed"]
    /\ result' = [result EXCEPT ![e] = r]
    /\ UNCHANGED <<hop, cut, lost, taken, net, verdict, crashes>>

TakeReceipt(e) == \E r \in {"done", "lost", "unknown"} : Receipt(e, r) \in net /\ CloseEdge(e, r)
TakeRefusal(e) == Refusal(e) \in net /\ CloseEdge(e, "done")
\* Who has taken an edge does not say that it never will run: it is another who does.
TakeNever(e) ==
    /\ Never(e) \in net
    /\ CloseEdge(e, IF taken[e] = "yes" /\ Broken # "denied is unknown" THEN "unknown" ELSE "lost")
GiveUp(e) == CloseEdge(e, IF Broken = "silence is unknown" THEN "done" ELSE "unknown")
Assume(e) == Broken = "doubt is no answer" /\ CloseEdge(e, "done")

Ask(e) ==
    /\ edge[e] = "open"
    /\ Question(e) \notin net
    /\ net' = net \cup {Question(e)}
    /\ UNCHANGED <<hop, cut, lost, edge, result, taken, verdict, crashes>>

\* What is asked for, and never came, never will.
Answer(e) ==
    /\ Question(e) \in net
    /\ hop[e] \in {"absent", "over"}
    /\ Never(e) \notin net
    /\ net' = net \cup {Never(e)}
    /\ hop' = IF Broken = "asked for is over" THEN hop ELSE [hop EXCEPT ![e] = "over"]
    /\ UNCHANGED <<cut, lost, edge, result, taken, verdict, crashes>>

\* The sender hears, perhaps late, that an edge is worked on; and writes that.
Hear(e) ==
    /\ e \in Shared
    /\ edge[e] = "open"
    /\ taken[e] = "no"
    /\ hop[e] \in {"running", "waiting", "closed"}
    /\ taken' = [taken EXCEPT ![e] = "yes"]
    /\ UNCHANGED <<hop, cut, lost, edge, result, net, verdict, crashes>>

\* Another at the same address is asked for it, which it never came to.
Deny(e) ==
    /\ e \in Shared
    /\ taken[e] # "no"
    /\ Question(e) \in net
    /\ Never(e) \notin net
    /\ net' = net \cup {Never(e)}
    /\ UNCHANGED <<hop, cut, lost, edge, result, taken, verdict, crashes>>

\* The process at a node ends, and another begins, with what was written.
Crash(n) ==
    /\ crashes < CrashesMax
    /\ crashes' = crashes + 1
    /\ cut' = [h \in Hops |-> cut[h] \/ (Home[h] = n /\ hop[h] = "running")]
    /\ IF Broken = "keeps a journal"
       THEN /\ hop' = [h \in Hops |-> IF Home[h] = n /\ h # Root THEN "absent" ELSE hop[h]]
            /\ edge' = [e \in Edges |-> IF Home[Parent[e]] = n /\ Parent[e] # Root
                                        THEN "unsent" ELSE edge[e]]
            /\ UNCHANGED lost
       ELSE /\ hop' = [h \in Hops |-> IF Home[h] = n /\ hop[h] = "running"
                                      THEN "waiting" ELSE hop[h]]
            /\ lost' = [h \in Hops |-> lost[h] \/ (Home[h] = n /\ hop[h] = "running"
                                                   /\ Broken # "lost is told")]
            /\ UNCHANGED edge
    /\ taken' = [e \in Edges |-> IF Broken = "taken is written" /\ Home[Parent[e]] = n /\ taken[e] = "yes"
                               THEN "forgotten" ELSE taken[e]]
    /\ UNCHANGED <<result, net, verdict>>

Next ==
    \/ \E e \in Edges :
        \/ Send(e) \/ Arrive(e) \/ Refuse(e) \/ TakeReceipt(e) \/ TakeRefusal(e)
        \/ TakeNever(e) \/ GiveUp(e) \/ Assume(e) \/ Ask(e) \/ Answer(e) \/ Hear(e) \/ Deny(e)
    \/ \E h \in Hops : End(h) \/ Close(h)
    \/ \E n \in {Home[h] : h \in Hops} : Crash(n)

Fair ==
    /\ \A e \in Edges :
        WF_vars(TakeReceipt(e)) /\ WF_vars(TakeNever(e)) /\ WF_vars(Ask(e)) /\ WF_vars(Answer(e))
    /\ \A h \in Hops : WF_vars(End(h)) /\ WF_vars(Close(h))

Spec == Init /\ [][Next]_vars /\ Fair

-----------------------------------------------------------------------------
\* Once it is told that the cascade has settled, nothing runs, then or later.
Safe == verdict \in {"done", "lost"} => \A h \in Hops : hop[h] # "running"

\* Without losses, nothing was lost.
Whole == verdict = "done" => \A h \in Hops : ~cut[h]

\* There is a verdict in the end.
Live == <>(verdict # "none")
=============================================================================
