"""A web application that produces and handles: uvicorn examples.fastapi_app:app.

The worker starts and stops with the application: on shutdown it claims nothing more, lets running
handlers finish, and gives back what it has not started.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from mx_rmq import RedisMessageQueue

mq = RedisMessageQueue("embedded://", stop_grace=10)
welcomed: list[str] = []


@mq.handler("signups")
async def welcome(payload: dict[str, str]) -> None:
    welcomed.append(payload["name"])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with mq:
        await mq.start()
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/signups/{name}")
async def sign_up(name: str) -> dict[str, str]:
    return {"message": await mq.produce("signups", {"name": name})}


@app.get("/welcomed")
async def who() -> list[str]:
    return welcomed
