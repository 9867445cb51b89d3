from __future__ import annotations

import asyncio
import json
import shlex
import signal
import stat
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Retry
from mx_rmq.message import Death
from tests.cli.terminal import on_terminal
from tests.words import ONE_SERVER, bury, claim, eventually, in_order, put_bytes, store_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.cli.conftest import Cli

pytestmark = ONE_SERVER

BANK = Death(reason="failed", error="ConnectionError: bank 10.0.0.7 is away", kind="ConnectionError")
LOST = Death(reason="failed", error="KeyError: 'price'", kind="KeyError", place="shop.py:7 in total")
TRACE = "shop.py:12 in charge > bank.py:7 in call"


@pytest.fixture
async def shop(queue: RedisMessageQueue, redis: Redis) -> RedisMessageQueue:
    """A queue with six dead messages: three payments, two prices and a poisoned one."""
    for n in (1, 2, 3):
        await queue.produce("payments", {"number": n}, message_id=f"pay-{n}", headers={"tenant": "7"})
    await bury(redis, BANK, "payments", trace=TRACE)
    await queue.produce("prices", {"prise": 990}, message_id="price-1")
    await queue.produce("prices", {"prise": 991}, message_id="price-2")
    await bury(redis, LOST, "prices")
    await asyncio.sleep(0.002)  # letters of one ms are listed by their ids
    await put_poison(redis)
    return queue


async def put_poison(redis: Redis) -> None:
    """A dead message whose bytes are no message."""
    await put_bytes(redis, "poison", b"\x80\x04\x95pickled", "payments")
    (delivery,) = await claim(redis, "payments")
    death = b'{"reason":"unparsable","error":"stored bytes are not a message"}'
    await store_of(redis).move_to_dlq("payments", [(delivery, b"", death)])


async def dead(queue: RedisMessageQueue) -> list[str]:
    return sorted(letter.id for letter in (await queue.dlq.list(limit=1000)).letters)


# -- looking


async def test_ls_shows_a_page_and_says_where_the_next_begins(shop: RedisMessageQueue, cli: Cli) -> None:
    first = await cli("dlq", "ls", "--limit", "2")
    assert first.code == 0
    after = first.err.strip().removeprefix("more with --after ")
    rest = await cli("dlq", "ls", "--after", after, "--json")
    assert [*(row[0] for row in first.rows), *(one["id"] for one in rest.json["letters"])] == [
        *("poison", "price-2", "price-1", "pay-3", "pay-2", "pay-1"),
    ]
    assert rest.json["next"] is None
    assert rest.err == ""
    page = await cli("dlq", "ls", "--limit", "1", "--json")
    assert page.json["next"]


async def test_ls_filters_by_topic_error_and_group(shop: RedisMessageQueue, cli: Cli) -> None:
    (group,) = [group.id for group in await shop.dlq.groups() if group.error == "KeyError"]
    for filters, ids in (
        (["--topic", "prices"], ["price-2", "price-1"]),
        (["--error", "ConnectionError"], ["pay-3", "pay-2", "pay-1"]),
        (["--group", group], ["price-2", "price-1"]),
    ):
        ran = await cli("dlq", "ls", *filters)
        assert [row[0] for row in ran.rows] == ids
    none = await cli("dlq", "ls", "--topic=--help")
    assert (none.code, none.out) == (0, "")
    assert "no dead message of topic '--help'" in none.err


async def test_ls_on_a_narrow_terminal_keeps_one_line_a_message(shop: RedisMessageQueue, cli: Cli) -> None:
    ran = await cli.on_terminal("dlq", "ls", columns=60)
    lines = ran.out.splitlines()
    assert len(lines) == 7
    assert all(len(line) <= 60 for line in lines)
    assert lines[0].split() == ["message", "topic", "died", "error"]
    assert lines[-1].split()[:2] == ["pay-1", "payments"]


async def test_groups_come_largest_first_with_their_ids(shop: RedisMessageQueue, cli: Cli) -> None:
    found = await shop.dlq.groups()
    ran = await cli("dlq", "groups")
    assert (ran.code, ran.err) == (0, "")
    assert [(row[0], row[1], row[2], row[5]) for row in ran.rows] == [
        (str(group.count), group.topic, group.error, group.id) for group in found
    ]
    assert ran.rows[0][6:] == ["bank 10.0.0.7 is away", ""]
    assert ran.rows[1][6:] == ["'price'", "shop.py:7 in total"]
    seen = await cli.on_terminal("dlq", "groups")
    assert "'price' (shop.py:7 in total)" in seen.out
    as_json = await cli("dlq", "groups", "--topic", "prices", "--json")
    (group,) = as_json.json["groups"]
    assert (group["count"], group["error"]) == (2, "KeyError")


async def test_show_tells_everything_about_one(shop: RedisMessageQueue, cli: Cli) -> None:
    ran = await cli("dlq", "show", "pay-1")
    facts = {row[0]: row[1:] for row in ran.rows}
    assert facts["payload"] == ['{"number": 1}']
    assert facts["header"] == ["tenant", "7"]
    assert facts["last error"] == [BANK.error]
    assert facts["group"] == [(await shop.dlq.get("pay-1")).group]
    assert facts["attempt"][1:] == ["w1", "0 s", "bank.py:7 in call", BANK.error, TRACE]
    seen = await cli.on_terminal("dlq", "show", "pay-1")
    assert '  "number": 1' in seen.out
    assert TRACE.replace(" > ", "\n") in seen.out
    as_json = await cli("dlq", "show", "pay-1", "--json")
    assert as_json.json["payload"] == {"number": 1}
    assert as_json.json["history"][0]["error"] == BANK.error


async def test_bytes_that_cannot_be_read_are_hex_with_the_reason(shop: RedisMessageQueue, cli: Cli) -> None:
    ran = await cli("dlq", "show", "poison")
    assert ran.code == 0
    assert "body\t8004957069636b6c6564\n" in ran.out
    assert "unreadable\tstored bytes are not a message" in ran.out
    seen = await cli.on_terminal("dlq", "show", "poison")
    assert "80 04 95 70 69 63 6b 6c 65 64" in seen.out
    assert "...pickled" in seen.out
    as_json = await cli("dlq", "show", "poison", "--json")
    assert "not a message" in as_json.json["unreadable"]
    edit = await cli("dlq", "edit", "poison", "--payload", "1", "--yes")
    assert edit.code == 1
    assert "cannot be edited" in edit.err


async def test_what_is_not_dead_is_not_found_and_said_where_it_is(shop: RedisMessageQueue, cli: Cli) -> None:
    await shop.produce("payments", 1, message_id="alive")
    for arguments in (["show", "alive"], ["edit", "alive", "--payload", "1"], ["delete", "alive", "--yes"]):
        ran = await cli("dlq", *arguments)
        assert (ran.code, ran.out) == (4, "")
    shown = await cli("dlq", "show", "alive")
    assert "message alive of topic 'payments' is pending" in shown.err
    group = await cli("dlq", "replay", "--group", "0123456789abcdef", "--yes")
    assert group.code == 4
    assert "dlq groups" in group.err
    topic = await cli("dlq", "replay", "--topic", "payment", "--yes")
    assert topic.code == 4
    assert "did you mean 'payments'?" in topic.err


# -- replaying


async def test_replay_says_how_many_and_where_and_asks(
    shop: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    refused = await cli.on_terminal("dlq", "replay", "--topic", "prices", answers="n\n")
    assert refused.code == 1
    assert "Replay 2 dead messages of topic 'prices' in queue 'q' on unix://" in refused.out
    assert len(await dead(shop)) == 6
    agreed = await cli.on_terminal("dlq", "replay", "--topic", "prices", answers="y\n")
    assert agreed.code == 0
    assert "replayed 2 dead messages" in agreed.out
    assert await in_order(redis, "prices") == ["price-1", "price-2"]


async def test_replay_without_a_terminal_needs_yes_and_a_choice(shop: RedisMessageQueue, cli: Cli) -> None:
    for arguments, said in (
        (["--all"], "--yes"),
        (["--yes"], "needs ids, or --topic, --error or --group, or --all"),
        (["pay-1", "--all", "--yes"], "give one of them"),
        (["pay-1", "--canary", "1", "--yes"], "--rate and --canary are for filters or --all"),
        (["--all", "--rate", "many", "--yes"], "--rate must be a rate such as 100/s"),
    ):
        ran = await cli("dlq", "replay", *arguments)
        assert (ran.code, ran.out) == (2, ""), arguments
        assert said in ran.err
    assert len(await dead(shop)) == 6
    ran = await cli("dlq", "replay", "--error", "ConnectionError", "--yes", "--json")
    assert (ran.code, ran.json) == (0, {"replayed": 3})
    none = await cli("dlq", "replay", "--error", "ConnectionError", "--json")
    assert (none.code, none.json) == (0, {"replayed": 0})


async def test_ids_that_are_not_dead_hold_up_no_others(
    shop: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    ran = await cli("dlq", "replay", "pay-1", "nosuch", "pay-3", "--yes")
    assert (ran.code, ran.out) == (4, "")
    assert "replayed 2 dead messages, but not 1:" in ran.err
    assert "message 'nosuch' is not in the DLQ" in ran.err
    assert sorted(await in_order(redis, "payments")) == ["pay-1", "pay-3"]


async def test_canaries_that_die_again_stop_a_replay_and_are_named(
    shop: RedisMessageQueue, mq: RedisMessageQueue, cli: Cli
) -> None:
    @mq.handler("payments", retry=Retry(1))
    async def pay(payload: dict[str, int]) -> None:
        if payload["number"] < 3:
            raise ConnectionError("the bank is still away")

    await mq.start()
    ran = await cli("dlq", "replay", "--error", "ConnectionError", "--canary", "2", "--yes")
    assert (ran.code, ran.out) == (1, "")
    assert "2 of 2 canaries died again, nothing else was replayed:" in ran.err
    assert "pay-1: ConnectionError: the bank is still away" in ran.err
    assert "pay-3" in await dead(shop)
    well = await cli("dlq", "replay", "--error", "10.0.0.7", "--canary", "1", "--yes")
    assert (well.code, well.out) == (0, "replayed 1 dead message\n")


async def test_a_canary_that_no_worker_runs_is_explained(shop: RedisMessageQueue, cli: Cli) -> None:
    ran = await cli("dlq", "replay", "--topic", "prices", "--canary=1", "--canary-timeout=100ms", "--yes")
    assert ran.code == 1
    assert "1 of 1 canaries did not end within 0.1 s" in ran.err
    assert "no live worker has a handler for the topic" in ran.err


async def test_an_interrupted_replay_says_how_far_it_got_and_goes_on(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await queue.produce_many("t", range(400))
    await bury(redis)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mx_rmq", "dlq", "replay", "--all", "--yes", "--rate", "200/s"),
        cwd=cli.directory,
        env=cli.env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )

    async def begun() -> bool:
        return (await queue.counts()).pending >= 40

    await eventually(begun)
    child.send_signal(signal.SIGINT)
    out, err = await child.communicate()
    assert (child.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert b"mx-rmq: interrupted: replayed " in err
    assert b" of 400; the same command goes on" in err
    counts = await queue.counts()
    assert counts.pending + counts.dead == 400
    assert counts.dead > 0
    ran = await cli("dlq", "replay", "--all", "--yes")
    assert ran.out == f"replayed {counts.dead} dead messages\n"
    assert (await queue.counts()).pending == 400


# -- editing


async def test_edit_shows_the_difference_and_replays_with_the_new_payload(
    shop: RedisMessageQueue, cli: Cli
) -> None:
    refused = await cli("dlq", "edit", "price-1", "--payload", '{"price": 990}')
    assert refused.code == 2
    assert "--yes" in refused.err
    ran = await cli("dlq", "edit", "price-1", "--payload", "-", "--yes", stdin='{"price": 990}')
    assert (ran.code, ran.out) == (0, "replayed price-1 with the new payload\n")
    assert '-  "prise": 990\n+  "price": 990\n' in ran.err
    facts = await shop.find("price-1")
    assert (facts.state, facts.payload) == ("pending", {"price": 990})


async def test_what_cannot_be_a_payload_is_refused_before_anything_is_sent(
    shop: RedisMessageQueue, cli: Cli
) -> None:
    for payload, code, said in (
        ("{price}", 2, "--payload must be JSON: Expecting property name"),
        ("[NaN]", 2, "JSON has no NaN"),
        ("1e999", 2, "payload is inf, which JSON cannot hold"),
        ('{"prise": 991}', 1, "the payload is the same"),
    ):
        ran = await cli("dlq", "edit", "price-2", "--yes", f"--payload={payload}")
        assert (ran.code, ran.out) == (code, ""), payload
        assert said in ran.err
    assert "price-2" in await dead(shop)


async def test_edit_opens_the_editor_and_again_after_a_slip(shop: RedisMessageQueue, cli: Cli) -> None:
    editor = cli.directory / "editor.py"
    editor.write_text(
        "import pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "text = path.read_text()\n"
        "slips = '}}' not in text\n"
        "mended = text.replace('}}', '}').replace('prise', 'price')\n"
        "path.write_text(text.strip() + '}' if slips else mended)\n"
    )
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(editor))}"
    ran = await cli.on_terminal("dlq", "edit", "price-1", answers="\ny\n", env={"EDITOR": command})
    assert ran.code == 0, ran.out
    assert "This is not JSON: Extra data" in ran.out
    assert "Replay message price-1 with this payload in queue 'q' on unix://" in ran.out
    assert (await shop.find("price-1")).payload == {"price": 990}
    failed = await cli.on_terminal("dlq", "edit", "price-2", env={"VISUAL": "false"})
    assert failed.code == 1
    assert "the editor 'false' failed with exit code 1; nothing was done" in failed.out
    piped = await cli("dlq", "edit", "price-2")
    assert piped.code == 2
    assert "--payload JSON" in piped.err
    assert "price-2" in await dead(shop)


# -- deleting, exporting, importing


async def test_delete_asks_and_deletes_for_good(shop: RedisMessageQueue, cli: Cli) -> None:
    refused = await cli("dlq", "delete", "--all")
    assert refused.code == 2
    assert "Delete 6 dead messages from queue 'q' on unix://" in refused.err
    asked = await cli.on_terminal("dlq", "delete", "price-1", "price-2", answers="y\n")
    assert (asked.code, "deleted 2 dead messages" in asked.out) == (0, True)
    some = await cli("dlq", "delete", "pay-1", "nosuch", "--yes")
    assert some.code == 4
    assert "deleted 1 dead message; 1 of the given are not in the DLQ" in some.err
    ran = await cli("dlq", "delete", "--topic", "payments", "--yes", "--json")
    assert (ran.code, ran.json) == (0, {"deleted": 3})
    assert await dead(shop) == []


async def test_what_is_deleted_is_in_a_file_first_and_can_be_put_back(
    shop: RedisMessageQueue, cli: Cli
) -> None:
    before = [one.as_dict() async for one in shop.dlq.export()]
    file = cli.directory / "dead.jsonl"
    file.write_text("precious")
    refused = await cli("dlq", "delete", "--all", "--export", "dead.jsonl", "--yes")
    assert refused.code == 2
    assert "dead.jsonl exists already and is not overwritten" in refused.err
    assert file.read_text() == "precious"
    nowhere = await cli("dlq", "delete", "--all", "--export", "no/such/dir.jsonl", "--yes")
    assert nowhere.code == 1
    assert len(await dead(shop)) == 6
    file.unlink()
    ran = await cli("dlq", "delete", "--all", "--export", "dead.jsonl", "--yes")
    assert (ran.code, ran.out) == (0, "deleted 6 dead messages; kept in dead.jsonl\n")
    assert await dead(shop) == []
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    back = await cli("dlq", "import", "dead.jsonl", "--json")
    assert (back.code, back.json) == (0, {"restored": 6, "live": 0, "dead": 0, "refused": []})
    assert [one.as_dict() async for one in shop.dlq.export()] == before


async def test_some_are_deleted_by_id_after_they_are_in_a_file(shop: RedisMessageQueue, cli: Cli) -> None:
    missing = await cli("dlq", "delete", "poison", "nosuch", "--export", "one.jsonl", "--yes")
    assert missing.code == 4
    assert not (cli.directory / "one.jsonl").exists()
    assert "poison" in await dead(shop)
    ran = await cli("dlq", "delete", "poison", "--export", "one.jsonl", "--yes")
    assert ran.code == 0
    (line,) = (cli.directory / "one.jsonl").read_text().splitlines()
    assert json.loads(line)["body_base64"]
    assert "poison" not in await dead(shop)


async def test_export_writes_lines_and_import_names_bad_ones(shop: RedisMessageQueue, cli: Cli) -> None:
    exported = await cli("dlq", "export", "--topic", "payments")
    assert exported.code == 0
    assert exported.err == "exported 4 dead messages\n"
    assert [record["id"] for record in exported.records] == ["pay-1", "pay-2", "pay-3", "poison"]
    to_file = await cli("dlq", "export", "all.jsonl", "--json")
    assert to_file.json == {"exported": 6, "file": "all.jsonl"}
    await shop.dlq.delete("pay-1")
    await shop.dlq.replay("pay-2")
    lines = exported.out.splitlines()
    bad = [lines[0], "", "{oops", '{"id": "x"}', *lines[1:]]
    ran = await cli("dlq", "import", "-", stdin="\n".join(bad))
    assert ran.code == 1
    assert ran.out.startswith("put back 1 dead message into queue 'q' on unix://")
    assert "; 2 already in the DLQ; 1 not put back, since a message with the id is alive" in ran.out
    assert "; 2 lines refused" in ran.out
    assert "line 3: not JSON: " in ran.err
    assert "line 4: " in ran.err
    assert "pay-1" in await dead(shop)
    none = await cli("dlq", "import", "nosuch.jsonl")
    assert (none.code, none.err) == (4, "mx-rmq: there is no file nosuch.jsonl\n")


async def test_an_export_into_a_closed_pipe_ends_without_a_word(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await queue.produce_many("t", ["x" * 1000] * 300)
    await bury(redis)
    line = f"{shlex.quote(sys.executable)} -m mx_rmq dlq export --quiet | head -n 1"
    child = await asyncio.create_subprocess_shell(
        line,
        env=cli.env,
        cwd=cli.directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await child.communicate()
    record: dict[str, Any] = json.loads(out)
    assert record["topic"] == "t"
    assert err == b""


async def test_a_purged_topic_is_in_a_file_first(queue: RedisMessageQueue, redis: Redis, cli: Cli) -> None:
    await queue.produce("mails", {"n": 1}, message_id="m1", headers={"tenant": "7"}, priority="low")
    await queue.produce("mails", {"n": 2}, message_id="m2", delay=60)
    await put_bytes(redis, "poison", b"\x80", "mails")
    await queue.produce("other", 1, delay=60)
    ran = await cli("topic", "purge", "mails", "--export", "mails.jsonl", "--yes", "--json")
    assert (ran.code, ran.json) == (0, {"topic": "mails", "purged": 3, "exported": 3, "file": "mails.jsonl"})
    records = [json.loads(line) for line in (cli.directory / "mails.jsonl").read_text().splitlines()]
    assert [(one["id"], one["payload"], one["state"], one["body"]) for one in records] == [
        ("poison", None, "pending", "80"),
        ("m1", {"n": 1}, "pending", None),
        ("m2", {"n": 2}, "delayed", None),
    ]
    counts = await queue.counts()
    assert (counts.topics["mails"].pending, counts.delayed) == (0, 1)
    again = await cli("topic", "purge", "mails", "--export", "mails.jsonl", "--yes")
    assert again.code == 2
    unknown = await cli("topic", "purge", "mail", "--export", "x.jsonl", "--yes")
    assert unknown.code == 4
    assert not (cli.directory / "x.jsonl").exists()


# -- what must not go wrong


@pytest.mark.parametrize("verb", ["delete", "replay"])
@pytest.mark.parametrize("filter_", ["--topic", "--error", "--group"])
async def test_an_empty_filter_is_refused_and_does_not_mean_all(
    shop: RedisMessageQueue, cli: Cli, verb: str, filter_: str
) -> None:
    before = await dead(shop)
    ran = await cli("dlq", verb, filter_, "", "--yes")
    assert (ran.code, ran.out) == (2, "")
    assert f"{filter_[2:]} must be a text, or None for any, got ''" in ran.err
    assert await dead(shop) == before


async def test_where_nothing_matches_nothing_is_done(shop: RedisMessageQueue, cli: Cli) -> None:
    ran = await cli("dlq", "delete", "--topic", "payments", "--error", "nobody said this")
    assert (ran.code, ran.out) == (
        0,
        "no dead message of topic 'payments' with the error 'nobody said this'; nothing was done\n",
    )
    assert (await cli("dlq", "replay", "--error", "nobody said this", "--json")).json == {"replayed": 0}
    assert (await cli("dlq", "delete", "--topic", "paiments")).code == 4


async def test_ctrl_c_ends_a_question(shop: RedisMessageQueue, cli: Cli) -> None:
    before = await dead(shop)
    async with on_terminal(cli, "dlq", "delete", "--all") as terminal:
        await terminal.shows("for good? [y/N]")
        terminal.type("\x03")
        assert await terminal.ended() == 130
    assert await dead(shop) == before


async def test_an_export_is_json_on_any_output(queue: RedisMessageQueue, redis: Redis, cli: Cli) -> None:
    await queue.produce("t", {"name": "Jürgen 😀"}, message_id="A1")
    await bury(redis, LOST)
    for encoding in ("ascii", "latin-1", "utf-8"):
        ran = await cli("dlq", "export", env={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
        assert ran.records[0]["payload"] == {"name": "Jürgen 😀"}, encoding
