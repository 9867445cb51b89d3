"""The pages, in the order of the navigation."""

from mx_rmq.web.pages import (
    dead,
    jobs,
    live,
    login,
    message,
    overview,
    scheduled,
    search,
    server,
    topic,
    workers,
)

SECTIONS = (
    overview.SECTION,
    topic.SECTION,
    dead.SECTION,
    message.SECTION,
    scheduled.SECTION,
    workers.SECTION,
    server.SECTION,
    search.SECTION,
    jobs.SECTION,
    live.SECTION,
    login.SECTION,
)
