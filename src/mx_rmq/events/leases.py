"""Events of leases: lost, not extended, not settled, given back, recovered."""

from __future__ import annotations

import logging

from mx_rmq.events.event import Event, listed


@listed
class LeaseLost(Event, tag="lease.lost"):
    """A message belongs to another worker now; the result of the handler here is ignored."""

    level = logging.WARNING
    says = "{topic} {id} belongs to another worker now; what its handler did here does not count"
    topic: str
    id: str
    token: str


@listed
class StartNotNoted(Event, tag="start.not_noted"):
    """The start of a message could not be noted on the server; a crash will not count against it."""

    level = logging.WARNING
    says = "that messages of {topic} begin could not be noted, so a crash is not blamed on them: {error}"
    topic: str
    error: str


@listed
class SettleFailed(Event, tag="settle.failed"):
    """Messages could not be settled; they run again when their leases run out."""

    level = logging.ERROR
    says = (
        "{messages} messages of {topic} could not be settled ({verdict}); they run again after "
        "their leases: {error}"
    )
    verdict: str
    topic: str
    messages: int
    error: str


@listed
class SettleGivenUp(Event, tag="settle.given_up"):
    """The worker stopped before messages could be settled; they run again."""

    level = logging.ERROR
    says = (
        "messages of {topic} were not settled ({verdict}) before the stop; they run again after their leases"
    )
    verdict: str
    topic: str


@listed
class SettleDelayed(Event, tag="settle.delayed"):
    """The lease keeper could not settle messages in place of a hung event loop; it tries again."""

    level = logging.WARNING
    says = "{messages} messages of {topic} could not be settled ({verdict}); trying again: {error}"
    verdict: str
    topic: str
    messages: int
    error: str


@listed
class ClaimGivenBack(Event, tag="claim.given_back"):
    """Messages leased by a claim whose reply was lost went back to their lanes."""

    says = "{messages} messages of {topic}, claimed without a reply, went back to the queue"
    topic: str
    messages: int


@listed
class ClaimNotGivenBack(Event, tag="claim.not_given_back"):
    """The leases of a claim whose reply was lost cannot be read; they run out."""

    level = logging.WARNING
    says = "messages of {topic}, claimed without a reply, wait for their leases: {error}"
    topic: str
    error: str


@listed
class LeasesSlow(Event, tag="leases.slow"):
    """The thread that extends leases gets too little time; handlers hold the interpreter."""

    level = logging.WARNING
    says = (
        "extending leases took {seconds:time} of a lease of {lease:time}: handlers hold the "
        "interpreter; use fewer threads or more processes"
    )
    seconds: float
    lease: float


@listed
class LeasesNotExtended(Event, tag="leases.not_extended"):
    """Leases could not be extended; the worker tries again."""

    level = logging.WARNING
    says = "leases could not be extended, trying again: {error}"
    error: str


@listed
class RecoveryByLease(Event, tag="recovery.by_lease"):
    """Vanished workers cannot be detected on this server; their messages wait until the leases run out."""

    level = logging.WARNING
    says = "{error}"
    error: str


@listed
class RecoveryWaits(Event, tag="recovery.waits"):
    """After an outage, take-overs wait so that living workers can extend their leases first."""

    says = "the server was away; owners of messages have {seconds:time} to extend their leases"
    seconds: float
