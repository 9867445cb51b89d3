"""Does the model check notice when a script loses a safeguard?

``python -m tests.model.mutants`` removes one safeguard at a time from a copy of the scripts and runs the
histories of the model check on it until one of its promises breaks. A safeguard that nobody misses is either
not needed or not tested: then the run ends with 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import mx_rmq.storage.scripts
from mx_rmq.storage.embedded import EmbeddedServer
from mx_rmq.storage.scripts import Script
from tests.model.histories import random_histories
from tests.model.machine import Bench
from tests.model.reference import Violation

SCRIPTS: Final = Path(mx_rmq.storage.scripts.__file__).parent

BUDGET: Final = 400
"""Histories a mutant must survive to count as not caught; the scripts as they are must survive them too."""


class Mutant(NamedTuple):
    name: str
    lost: str
    """The safeguard that is gone."""
    file: str
    old: str
    new: str


class Rotten(Exception):
    """The text a mutant replaces is not in its script exactly once."""


class Outcome(NamedTuple):
    mutant: str
    examples: int
    check: str | None
    """The promise that broke, None if none did."""
    what: str


MUTANTS: Final[Sequence[Mutant]] = (
    # -- the fence
    Mutant(
        "fence-open",
        "a lease may be used only with its own token",
        "lib/held.lua",
        " and find(lease, token, 1, true) == 1 and byte(lease, #token + 1) == 32 then",
        " then",
    ),
    Mutant(
        "fence-by-prefix",
        "the beginning of a token is not the token",
        "lib/held.lua",
        " and byte(lease, #token + 1) == 32",
        "",
    ),
    Mutant(
        "fence-by-suffix",
        "nor is the end of one",
        "lib/held.lua",
        "find(lease, token, 1, true) == 1 and byte(lease, #token + 1) == 32",
        "find(lease, token .. ' ', 1, true)",
    ),
    Mutant(
        "settle-twice-in-one-call",
        "a delivery named twice in one call is settled once",
        "lib/held.lua",
        "if lease and not seen[id] and",
        "if lease and",
    ),
    Mutant(
        "extend-not-at-all",
        "a heartbeat moves the deadline",
        "extend_lease.lua",
        "  redis.call('ZADD', monitor, unpack(deadlines))\n",
        "",
    ),
    Mutant(
        "extend-refused-when-full",
        "a full server lets a heartbeat pass",
        "extend_lease.lua",
        "  relieve(processing)\n",
        "",
    ),
    Mutant(
        "fence-of-the-clock",
        "the fence grows even if the clock is stepped back",
        "lib/fence.lua",
        "elseif last and last >= now_us and",
        "elseif false and",
    ),
    Mutant(
        "fence-stands-still",
        "no two calls give the same fence",
        "lib/fence.lua",
        "given = digits(last + 1)",
        "given = digits(last)",
    ),
    Mutant(
        "fence-forgotten",
        "a fence that is ahead of the clock is remembered",
        "lib/fence.lua",
        "    given = digits(last + 1)\n    redis.call('SET', key, given)\n",
        "    given = digits(last + 1)\n",
    ),
    Mutant(
        "fence-beside-the-memory",
        "a take-over goes by the fences of the claims",
        "handle_timeout_message.lua",
        "next_fence(fence, now_us)",
        "now",
    ),
    # -- claim: an entry is only a hint
    Mutant(
        "claim-any-hint",
        "an entry without body and deadline is dropped",
        "claim_message.lua",
        "    if body and stored[n * 3 - 1] == of_topic and expiries[n] and not held[n]",
        """    body, expiries[n] = body or '', expiries[n] or 'inf'
    if (stored[n * 3 - 1] or of_topic) == of_topic and not held[n]""",
    ),
    Mutant(
        "claim-of-another-topic",
        "an entry of an id that now belongs to another topic is dropped",
        "claim_message.lua",
        "if body and stored[n * 3 - 1] == of_topic and",
        "if body and",
    ),
    Mutant(
        "claim-of-a-delayed-one",
        "an entry of a message without a deadline, which is delayed now, is dropped",
        "claim_message.lua",
        "    if body and stored[n * 3 - 1] == of_topic and expiries[n] and",
        "    expiries[n] = expiries[n] or 'inf'\n    if body and stored[n * 3 - 1] == of_topic and",
    ),
    Mutant(
        "claim-of-a-leased-one",
        "an entry of a message that is leased is dropped",
        "claim_message.lua",
        "expiries[n] and not held[n] and",
        "expiries[n] and",
    ),
    Mutant(
        "claim-twice-in-one-call",
        "an id that stands twice in the lists is claimed once",
        "claim_message.lua",
        " and not known[id] then",
        " then",
    ),
    Mutant(
        "claim-without-deadline",
        "a lease ends",
        "claim_message.lua",
        "if taken > 0 then redis.call('ZADD', monitor, unpack(deadlines)) end\n",
        "",
    ),
    Mutant(
        "claim-count-lost",
        "a token counts the leases before it",
        "claim_message.lua",
        "      if keep then token = leased_before(keep) + 1 .. '@' .. given end\n",
        "",
    ),
    Mutant(
        "claim-low-first",
        "urgent messages come first",
        "claim_message.lua",
        "for number, lane in ipairs(lanes) do",
        "for number = 3, 1, -1 do\n    local lane = lanes[number]",
    ),
    Mutant(
        "claim-while-paused",
        "a paused topic is not delivered",
        "claim_message.lua",
        "if pauses[n] ~= 1 and pauses[#topics + n] ~= 1 then entries[n]",
        "if pauses[#topics + n] ~= 1 then entries[n]",
    ),
    Mutant(
        "claim-while-held",
        "a topic that waits for older shards is not delivered",
        "claim_message.lua",
        "if pauses[n] ~= 1 and pauses[#topics + n] ~= 1 then entries[n]",
        "if pauses[n] ~= 1 then entries[n]",
    ),
    # -- shards
    Mutant(
        "seal-open",
        "a sealed shard takes no messages",
        "lib/admit.lua",
        "  if memories[1] then error('SEALED the shard takes no new messages', 0) end\n",
        "",
    ),
    Mutant(
        "one-seal-open",
        "a sealed shard takes no message that comes alone",
        "produce_one_message.lua",
        "if sealed then error('SEALED the shard takes no new messages', 0) end\n",
        "",
    ),
    Mutant(
        "seal-forgets-who-was-stored",
        "a call that was stored before the seal is answered, not refused",
        "produce_normal_message.lua",
        "local answer = answer_of(call_key, call)\n",
        "admit(payload, dlq, done, 5, 4, max_bytes, now_ms)\nlocal answer = answer_of(call_key, call)\n",
    ),
    Mutant(
        "seal-lets-dead-ones-in",
        "a sealed shard takes no dead messages of an export",
        "restore_dlq.lua",
        "if redis.call('ZSCORE', done, '=sealed') then",
        "if false then",
    ),
    Mutant(
        "seal-ends",
        "the seal is for good",
        "seal_shard.lua",
        "return redis.call('ZADD', done, 'inf', '=sealed')",
        "return redis.call('ZADD', done, 1, '=sealed')",
    ),
    Mutant(
        "taken-but-dead",
        "an id that is dead on an older shard is taken",
        "taken_ids.lua",
        "deaths[n] and -1 or ",
        "",
    ),
    Mutant(
        "taken-for-ever",
        "an id is free when its time is over",
        "taken_ids.lua",
        "until_ms > now_ms",
        "until_ms > 0",
    ),
    Mutant(
        "carried-for-a-shorter-time",
        "an id that stays taken longer here keeps that time",
        "carry_done.lua",
        "tonumber(known[n] or 0) < tonumber(ARGV[n * 2])",
        "true",
    ),
    Mutant(
        "claim-keeps-the-rest-secret",
        "who leaves messages in the lists wakes the next worker",
        "claim_message.lua",
        "  if type(left) == 'number' and left > 0 then wake(KEYS[first + 4]) end\n",
        "",
    ),
    Mutant(
        "claim-leaves-the-token",
        "no token is left behind when nothing is",
        "claim_message.lua",
        "if #spent > 0 then redis.call('DEL', unpack(spent)) end\n",
        "",
    ),
    # -- claim from some topics
    Mutant(
        "claim-more-than-can-run",
        "the messages of all topics make no more runs than there are",
        "claim_message.lua",
        "    runs = runs - math.ceil(got / batches[n])\n",
        "",
    ),
    Mutant(
        "claim-past-the-limit-of-a-topic",
        "a topic gives no more than was asked of it",
        "claim_message.lua",
        "math.min(limits[n], runs * batches[n])",
        "runs * batches[n]",
    ),
    Mutant(
        "claim-one-message-for-a-run",
        "a run takes a whole batch",
        "claim_message.lua",
        "math.min(limits[n], runs * batches[n])",
        "math.min(limits[n], runs)",
    ),
    Mutant(
        "claim-looks-at-one-topic",
        "no topic is idle because another is",
        "claim_message.lua",
        "lists[#lists + 1] = KEYS[first + key]",
        "lists[#lists + 1] = KEYS[6 + key]",
    ),
    Mutant(
        "claim-of-an-idle-paused-topic",
        "a topic is paused though nothing is in it",
        "claim_message.lua",
        "local limits, batches, lists, stale = {}, {}, { paused }, {}",
        "local limits, batches, lists, stale = {}, {}, {}, {}",
    ),
    Mutant(
        "claim-leases-under-the-first-topic",
        "a lease stands with its own topic",
        "claim_message.lua",
        "topic, processing, leases, got = topics[n], KEYS[first], {}, 0",
        "topic, processing, leases, got = topics[n], KEYS[6], {}, 0",
    ),
    Mutant(
        "claim-wakes-one-topic",
        "every topic whose messages are left has its token",
        "claim_message.lua",
        "if type(left) == 'number' and left > 0 then wake(",
        "if n == 1 and type(left) == 'number' and left > 0 then wake(",
    ),
    # -- take over
    Mutant(
        "take-over-under-the-old-token",
        "a take-over makes the old token worthless",
        "handle_timeout_message.lua",
        "local token = (leased + 1) .. '@' .. given",
        "local token = lease and string.match(lease, '^%S+') or (leased + 1) .. '@' .. given",
    ),
    Mutant(
        "take-over-without-deadline",
        "a take-over moves the deadline",
        "handle_timeout_message.lua",
        "  redis.call('ZADD', monitor, now_ms + lease_ms, take.id)\n",
        "",
    ),
    Mutant(
        "take-over-without-lease",
        "a take-over is a lease of the monitor's own",
        "handle_timeout_message.lua",
        "  redis.call('HSET', take.processing, take.id, take.value)\n",
        "",
    ),
    Mutant(
        "take-over-removes",
        "what was taken over stays somewhere until it is settled",
        "handle_timeout_message.lua",
        """  redis.call('HSET', take.processing, take.id, take.value)
  redis.call('ZADD', monitor, now_ms + lease_ms, take.id)
""",
        """  redis.call('HDEL', take.processing, take.id)
  redis.call('ZREM', monitor, take.id)
""",
    ),
    Mutant(
        "take-over-forgets-the-cause",
        "who expired is not mistaken for a crash, however often it is taken over",
        "handle_timeout_message.lua",
        "if cause ~= 'expired' and cause ~= 'started' then cause = 'lapsed' end",
        "cause = 'lapsed'",
    ),
    Mutant(
        "take-over-count-lost",
        "the count of leases outlives the expiry",
        "handle_timeout_message.lua",
        "local leased, lane = leased_before(keep),",
        "local leased, lane = '0',",
    ),
    Mutant(
        "take-over-expiry-lost",
        "an expired message keeps its expiry",
        "handle_timeout_message.lua",
        "expires = digits(redis.call('ZSCORE', monitor, id))",
        "expires = digits(now_ms)",
    ),
    Mutant(
        "take-over-too-early",
        "nothing is taken over before its deadline",
        "handle_timeout_message.lua",
        "local late = redis.call('ZRANGE', monitor, '-inf', now_ms,",
        "local late = redis.call('ZRANGE', monitor, '-inf', now_ms + 1,",
    ),
    Mutant(
        "take-over-belated",
        "a take-over that was held up on its way takes nothing",
        "handle_timeout_message.lua",
        "if now_us > before_us then return { now, {}, {}, {}, 1 } end\n",
        "",
    ),
    Mutant(
        "take-over-refused-when-full",
        "a full server lets the monitor recover messages",
        "handle_timeout_message.lua",
        "if #late > 0 then relieve(payload) end\n",
        "",
    ),
    Mutant(
        "memory-never-ends",
        "completed ids are forgotten when their memory ends",
        "handle_timeout_message.lua",
        "if #forgotten > 0 then redis.call('ZREM', done, unpack(forgotten)) end\n",
        "",
    ),
    # -- produce
    Mutant(
        "produce-over-a-live-one",
        "an id that is live is not stored again",
        "lib/admit.lua",
        "if bodies[n] or seen[id] then",
        "if seen[id] then",
    ),
    Mutant(
        "produce-twice-in-one-call",
        "an id that stands twice in one call is stored once",
        "lib/admit.lua",
        "if bodies[n] or seen[id] then",
        "if bodies[n] then",
    ),
    Mutant(
        "produce-over-a-dead-one",
        "an id in the DLQ is not stored again",
        "lib/admit.lua",
        "elseif deaths[n] then",
        "elseif false then",
    ),
    Mutant(
        "produce-over-a-done-one",
        "a completed id that is remembered is not stored again",
        "lib/admit.lua",
        "elseif memories[n + 1] and tonumber(memories[n + 1]) > now_ms then",
        "elseif false then",
    ),
    Mutant(
        "produce-refused-for-ever",
        "a memory that has ended keeps nobody out",
        "lib/admit.lua",
        "elseif memories[n + 1] and tonumber(memories[n + 1]) > now_ms then",
        "elseif memories[n + 1] then",
    ),
    Mutant(
        "produce-in-no-lane",
        "a call is refused before anything is written",
        "lib/admit.lua",
        "    if not suffixes[lane] then error('BADLANE ' .. lane .. ' of message ' .. id, 0) end\n",
        "",
    ),
    Mutant(
        "produce-wakes-nobody",
        "a new message wakes a worker",
        "produce_normal_message.lua",
        "  wake(wake_list)\n",
        "",
    ),
    # -- produce of a message that comes alone
    Mutant(
        "one-over-a-live-one",
        "an id that is live is not stored again",
        "produce_one_message.lua",
        "live and '0' or ",
        "",
    ),
    Mutant(
        "one-over-a-dead-one",
        "an id in the DLQ is not stored again",
        "produce_one_message.lua",
        "died and '-1' or ",
        "",
    ),
    Mutant(
        "one-over-a-done-one",
        "a completed id that is remembered is not stored again",
        "produce_one_message.lua",
        "memory and tonumber(memory) > now_ms and '-2' or ",
        "",
    ),
    Mutant(
        "one-refused-for-ever",
        "a memory that has ended keeps nobody out",
        "produce_one_message.lua",
        "memory and tonumber(memory) > now_ms and '-2'",
        "memory and '-2'",
    ),
    Mutant(
        "one-in-no-lane",
        "a message in no lane is refused",
        "produce_one_message.lua",
        "if not list then error('BADLANE ' .. lane .. ' of message ' .. id, 0) end\n",
        "list = list or lists.normal\n",
    ),
    Mutant(
        "one-in-one-lane",
        "it waits in the lane of its priority",
        "produce_one_message.lua",
        "local list = lists[lane]\n",
        "local list = lists[lane] and lists.normal\n",
    ),
    Mutant(
        "one-without-expiry",
        "its lifetime starts when it is produced",
        "produce_one_message.lua",
        "local deadline = ttl_ms == 'inf' and ttl_ms or now_ms + ttl_ms\n",
        "local deadline = ttl_ms == 'inf' and ttl_ms or now_ms\n",
    ),
    Mutant(
        "one-wakes-nobody",
        "it wakes a worker",
        "produce_one_message.lua",
        "  wake(wake_list)\n",
        "",
    ),
    Mutant(
        "one-call-forgotten",
        "its call is remembered",
        "produce_one_message.lua",
        "remember(call_key, call, code)\n",
        "",
    ),
    Mutant(
        "one-not-counted",
        "it is counted",
        "produce_one_message.lua",
        "  count(counters, topic, 'produced', '1')\n",
        "",
    ),
    Mutant(
        "one-not-in-the-history",
        "it is in the history",
        "produce_one_message.lua",
        "  note(history, topic, now_us, 'p', '1')\n",
        "",
    ),
    # -- calls that are sent again
    Mutant(
        "calls-forgotten",
        "a call sent again is answered, not repeated",
        "lib/calls.lua",
        "if said ~= call then",
        "if true then",
    ),
    Mutant(
        "calls-confused",
        "a new call is not taken for the last one",
        "lib/calls.lua",
        "if said ~= call then",
        "if not said then",
    ),
    Mutant(
        "calls-belated",
        "a call that arrives after a later one is refused",
        "lib/calls.lua",
        "if last and (tonumber(call) or last) < last then",
        "if false then",
    ),
    # -- foreign text
    Mutant(
        "foreign-expiry-believed",
        "a number that the server does not take as a score is no expiry",
        "lib/instant.lua",
        "#text <= 20 and ",
        "",
    ),
    Mutant(
        "foreign-count-believed",
        "a count of too many digits is none",
        "lib/leased.lua",
        "#leased <= 9 and ",
        "",
    ),
    # -- delay
    Mutant(
        "delay-wakes-nobody",
        "a message that is due earlier than all others wakes the scheduler",
        "produce_delay_message.lua",
        "  if soonest < earliest then wake(delay_wake) end\n",
        "",
    ),
    Mutant(
        "delay-wakes-for-the-first-only",
        "the scheduler is woken also when it waits for a later one",
        "produce_delay_message.lua",
        "if soonest < earliest then",
        "if earliest == math.huge then",
    ),
    Mutant(
        "promote-leaves-the-delay",
        "what is pending is no longer delayed",
        "process_delay_message.lua",
        "if #promoted > 0 then redis.call('ZREM', delay_tasks, unpack(promoted)) end\n",
        "",
    ),
    Mutant(
        "promote-expiry-lost",
        "the expiry outlives a delay",
        "process_delay_message.lua",
        "deadlines[#deadlines + 1] = instant(expires)",
        "deadlines[#deadlines + 1] = 'inf'",
    ),
    Mutant(
        "promote-lane-lost",
        "the priority outlives a delay",
        "process_delay_message.lua",
        "(suffixes[lane] or suffixes.normal)",
        "suffixes.normal",
    ),
    Mutant(
        "promote-count-lost",
        "the count of leases outlives a promotion",
        "process_delay_message.lua",
        "if leased == '0' then spare",
        "if leased then spare",
    ),
    Mutant(
        "promote-too-early",
        "nothing is promoted before it is due",
        "process_delay_message.lua",
        "redis.call('ZRANGE', delay_tasks, '-inf', now_ms,",
        "redis.call('ZRANGE', delay_tasks, '-inf', now_ms + 1,",
    ),
    Mutant(
        "promote-wakes-nobody",
        "a promoted message wakes a worker",
        "process_delay_message.lua",
        "  wake(prefix .. group.topic .. ':wake')\n",
        "",
    ),
    # -- settle
    Mutant(
        "retry-leaves-the-lease",
        "who gave a message back no longer holds it",
        "retry_message.lua",
        "  redis.call('HDEL', processing, unpack(retried))\n",
        "",
    ),
    Mutant(
        "retry-leaves-the-deadline",
        "a delayed message has no deadline",
        "retry_message.lua",
        "  redis.call('ZREM', monitor, unpack(retried))\n",
        "",
    ),
    Mutant(
        "retry-expiry-lost",
        "the expiry outlives a retry",
        "retry_message.lua",
        "leased .. ' ' .. lane .. ' ' .. expires",
        "leased .. ' ' .. lane .. ' inf'",
    ),
    Mutant(
        "retry-lane-lost",
        "the priority outlives a retry",
        "retry_message.lua",
        "leased .. ' ' .. lane .. ' ' .. expires",
        "leased .. ' normal ' .. expires",
    ),
    Mutant(
        "retry-count-lost",
        "the count of leases outlives a retry",
        "retry_message.lua",
        "leased .. ' ' .. lane .. ' ' .. expires",
        "'0 ' .. lane .. ' ' .. expires",
    ),
    Mutant(
        "retry-wakes-nobody",
        "a retry that is due earlier than all others wakes the scheduler",
        "retry_message.lua",
        "  if soonest < earliest then wake(delay_wake) end\n",
        "",
    ),
    Mutant(
        "put-off-counted-as-retried",
        "a message that its handler put off is not counted as retried",
        "retry_message.lua",
        "count(counters, topic, event, #retried)",
        "count(counters, topic, 'retried', #retried)",
    ),
    Mutant(
        "release-to-the-tail",
        "a released message is the next to be claimed",
        "release_message.lua",
        "redis.call('RPUSH', list, unpack(push))",
        "redis.call('LPUSH', list, unpack(push))",
    ),
    Mutant(
        "release-in-reverse",
        "released messages keep their order",
        "release_message.lua",
        "for n = #ids, 1, -1 do",
        "for n = 1, #ids do",
    ),
    Mutant(
        "release-expiry-lost",
        "the expiry outlives a release",
        "release_message.lua",
        "deadlines[#deadlines + 1] = expires",
        "deadlines[#deadlines + 1] = 'inf'",
    ),
    Mutant(
        "release-count-lost",
        "the count of leases outlives a release",
        "release_message.lua",
        "    fields[#fields + 1] = leased .. ' ' .. lane .. ' ' .. expires\n",
        "    fields[#fields + 1] = '0 ' .. lane .. ' ' .. expires\n",
    ),
    Mutant(
        "recover-keeps-the-old-body",
        "a recovered message has its new body",
        "release_message.lua",
        "if body ~= '' then",
        "if false then",
    ),
    Mutant(
        "release-wakes-nobody",
        "a released message wakes a worker",
        "release_message.lua",
        "  wake(wake_list)\n",
        "",
    ),
    Mutant(
        "complete-leaves-the-lease",
        "a completed message is in no place",
        "complete_message.lua",
        "  redis.call('HDEL', processing, unpack(finished))\n",
        "",
    ),
    Mutant(
        "complete-leaves-the-deadline",
        "a completed message has no deadline",
        "complete_message.lua",
        "  redis.call('ZREM', monitor, unpack(finished))\n",
        "",
    ),
    Mutant(
        "complete-leaves-the-topic",
        "nothing is left of a completed message",
        "complete_message.lua",
        "= id, id .. ':queue', id .. ':keep'",
        "= id, id, id .. ':keep'",
    ),
    Mutant(
        "complete-remembers-nothing",
        "a completed id stays taken for as long as was asked",
        "complete_message.lua",
        "    redis.call('ZADD', done, unpack(memories))\n",
        "",
    ),
    Mutant(
        "complete-forgets-the-end",
        "what became of a message is remembered if that was asked for",
        "complete_message.lua",
        "  for id, wish in pairs(wishes or {}) do note_end(prefix, id, 'done', now_ms, topic, wish) end\n",
        "",
    ),
    Mutant(
        "death-forgets-the-end",
        "so it is if the message died",
        "move_to_dlq.lua",
        "  for id, wish in pairs(wishes) do note_end(prefix, id, 'dead', now_ms, topic, wish) end\n",
        "",
    ),
    Mutant(
        "end-remembered-for-ever",
        "what is remembered goes away by itself",
        "lib/ended.lua",
        "text, 'PX', wish.remember_ms)",
        "text)",
    ),
    Mutant(
        "end-remembered-of-a-stale-one",
        "a late worker does not say what became of a message",
        "complete_message.lua",
        "local ids, status = held(payload, processing, 5, 3)\n",
        """local ids, status = held(payload, processing, 5, 3)
for n = 1, #ids do
  local wish = string.match(ARGV[5 + (n - 1) * 3 + 2], '^%d+ (.+)$')
  if wish then note_end(prefix, ids[n], 'done', now_ms, topic, wish_of(wish)) end
end
""",
    ),
    Mutant(
        "death-leaves-the-body",
        "a dead message is not live",
        "move_to_dlq.lua",
        "  redis.call('HDEL', payload, unpack(fields))\n",
        "",
    ),
    Mutant(
        "death-leaves-the-lease",
        "a dead message is held by nobody",
        "move_to_dlq.lua",
        "  redis.call('HDEL', processing, unpack(left))\n",
        "",
    ),
    Mutant(
        "death-rewrites-the-body",
        "a dead message keeps its bytes unless there are new ones",
        "move_to_dlq.lua",
        "if body == '' then body = redis.call('HGET', payload, id) end",
        "",
    ),
    # -- operators
    Mutant(
        "cancel-a-running-one",
        "what is running is not withdrawn",
        "cancel_message.lua",
        "  elseif lease then\n",
        "  elseif false then\n",
    ),
    Mutant(
        "cancel-leaves-the-delay",
        "a withdrawn message is in no place",
        "cancel_message.lua",
        "    redis.call('ZREM', delay_tasks, id)\n",
        "",
    ),
    Mutant(
        "cancel-twice-in-one-call",
        "an id that stands twice in one call is withdrawn once",
        "cancel_message.lua",
        "status[n] = topics[id] and -1 or 1",
        "status[n] = 1",
    ),
    Mutant(
        "hasten-puts-off-what-is-due",
        "what is due keeps its place",
        "hasten_message.lua",
        "  elseif due_ms <= now_ms or seen[id] then",
        "  elseif seen[id] then",
    ),
    Mutant(
        "hasten-delays-what-is-not",
        "only a delayed message becomes due",
        "hasten_message.lua",
        "  elseif not due_ms then",
        "  elseif false then",
    ),
    Mutant(
        "hasten-wakes-nobody",
        "the scheduler learns that a message is due earlier than all others",
        "hasten_message.lua",
        "  if now_ms < earliest then wake(delay_wake) end\n",
        "",
    ),
    Mutant(
        "hasten-the-gone",
        "an id without a message is not delayed",
        "hasten_message.lua",
        "  if redis.call('HEXISTS', payload, id) == 0 then",
        "  if false then",
    ),
    Mutant(
        "hasten-without-relief",
        "it passes when memory is full",
        "hasten_message.lua",
        "  relieve(payload)\n",
        "",
    ),
    Mutant(
        "cancel-drops-the-hints-of-others",
        "only the withdrawn message leaves the list",
        "lib/drop_hint.lua",
        "if redis.pcall('LINDEX', list, -1) == id then",
        "if redis.pcall('LINDEX', list, -1) then",
    ),
    Mutant(
        "replay-leaves-the-dead",
        "a replayed message is not dead",
        "replay_dlq.lua",
        "  redis.call('ZREM', dlq, unpack(replayed))\n",
        "",
    ),
    Mutant(
        "replay-twice-in-one-call",
        "an id that stands twice in one call is replayed once",
        "replay_dlq.lua",
        "local here = score and not seen[id] and",
        "local here = score and",
    ),
    Mutant(
        "replay-of-another-death",
        "only the death the operator has looked at is undone",
        "replay_dlq.lua",
        "elseif died ~= '' and died ~= score and tonumber(died) ~= tonumber(score) then",
        "elseif false then",
    ),
    Mutant(
        "replay-wakes-nobody",
        "a replayed message wakes a worker",
        "replay_dlq.lua",
        "    wake(prefix .. topic .. ':wake')\n",
        "",
    ),
    Mutant(
        "delete-leaves-the-body",
        "nothing is left of a deleted message",
        "lib/bury.lua",
        "  redis.call('HDEL', dlq_payload, unpack(fields))\n",
        "",
    ),
    Mutant(
        "delete-of-another-death",
        "only the death the operator has looked at is deleted",
        "delete_dlq.lua",
        " and (died == '' or tonumber(died) == tonumber(score)) then",
        " then",
    ),
    Mutant(
        "delete-twice-in-one-call",
        "an id that stands twice in one call is deleted once",
        "delete_dlq.lua",
        "if score and not seen[id] and",
        "if score and",
    ),
    Mutant(
        "restore-over-a-live-one",
        "a message that lives is not dead besides",
        "restore_dlq.lua",
        "if redis.call('HEXISTS', payload, id) == 1 then",
        "if false then",
    ),
    Mutant(
        "restore-over-a-dead-one",
        "a message in the DLQ stays as it is",
        "restore_dlq.lua",
        " or redis.call('ZSCORE', dlq, id) or redis.call('HEXISTS', dlq_payload, id) == 1 then",
        " then",
    ),
    Mutant(
        "restore-twice-in-one-call",
        "an id that stands twice in one call is restored once",
        "restore_dlq.lua",
        "elseif seen[id] or redis.call('ZSCORE'",
        "elseif redis.call('ZSCORE'",
    ),
    Mutant(
        "restore-uncounted",
        "a message put back is counted",
        "restore_dlq.lua",
        "    count(counters, topic, 'restored', amount)\n",
        "",
    ),
    Mutant(
        "restore-of-an-unknown-topic",
        "the topic of a message put back is known",
        "restore_dlq.lua",
        "    redis.pcall('SADD', topics, topic)\n",
        "",
    ),
    Mutant(
        "restored-in-no-group",
        "a message put back is counted in its group",
        "restore_dlq.lua",
        "  join_groups(dlq_groups, joined)\n",
        "",
    ),
    # -- groups of the dead
    Mutant(
        "death-in-no-group",
        "a dead message is counted in its group",
        "move_to_dlq.lua",
        "  join_groups(dlq_groups, joined)\n",
        "",
    ),
    Mutant(
        "death-forgets-its-group",
        "a dead message names its group",
        "move_to_dlq.lua",
        "  if #members > 0 then redis.call('HSET', dlq_payload, unpack(members)) end\n",
        "",
    ),
    Mutant(
        "group-counts-calls",
        "a group counts messages, not calls",
        "lib/join_groups.lua",
        "of.amount = of.amount + 1",
        "of.amount = 1",
    ),
    Mutant(
        "group-begins-anew",
        "a group knows its first death",
        "lib/join_groups.lua",
        "math.min(first_at, of.first_at)",
        "of.first_at",
    ),
    Mutant(
        "group-goes-back",
        "a group knows its last death",
        "lib/join_groups.lua",
        "math.max(last_at, of.last_at)",
        "of.last_at",
    ),
    Mutant(
        "group-without-a-name",
        "a group has a label",
        "lib/join_groups.lua",
        "id .. ':label', told[3] or of.label,",
        "id .. ':label', '',",
    ),
    Mutant(
        "replayed-but-in-its-group",
        "a replayed message leaves its group",
        "replay_dlq.lua",
        "  leave_groups(dlq_groups, left)\n",
        "",
    ),
    Mutant(
        "deleted-but-in-its-group",
        "a deleted message leaves its group",
        "lib/bury.lua",
        "  leave_groups(dlq_groups, left)\n",
        "",
    ),
    Mutant(
        "one-leaves-the-group",
        "as many leave a group as were replayed or deleted",
        "lib/leave_groups.lua",
        "id .. ':count', -amount)",
        "id .. ':count', -1)",
    ),
    Mutant(
        "group-of-none",
        "a group without messages is removed",
        "lib/leave_groups.lua",
        "if type(members) == 'number' and members <= 0 then",
        "if false then",
    ),
    Mutant(
        "group-removed-with-the-first",
        "a group stays as long as it has messages",
        "lib/leave_groups.lua",
        "members <= 0 then",
        "members >= 0 then",
    ),
    Mutant(
        "trim-without-limit",
        "a limit of none means none",
        "trim_dlq.lua",
        "if excess > 0 and limit > 0 then",
        "if excess > 0 then",
    ),
    Mutant(
        "purge-a-leased-one",
        "a purge leaves what is running",
        "purge_topic.lua",
        "if mine and redis.call('HEXISTS', processing, id) == 0 and",
        "if mine and",
    ),
    Mutant(
        "purge-a-delayed-one",
        "a purge leaves what is delayed",
        "purge_topic.lua",
        " and redis.call('ZREM', monitor, id) == 1 then",
        " then redis.call('ZREM', monitor, id)",
    ),
    Mutant(
        "purge-of-another-topic",
        "a purge leaves the messages of other topics",
        "purge_topic.lua",
        "local mine = redis.call('HGET', payload, id .. ':queue') == topic",
        "local mine = true",
    ),
    Mutant(
        "forget-a-full-topic",
        "a topic with entries in its lists or with leases is not looked at",
        "forget_topics.lua",
        " and total < math.huge and is_empty(topic) then",
        " and total < math.huge then",
    ),
    Mutant(
        "forget-the-delayed",
        "a topic with a delayed message is not forgotten",
        "forget_topics.lua",
        "elseif live == 0 and dead == 0 and",
        "elseif dead == 0 and",
    ),
    Mutant(
        "forget-the-dead",
        "a topic with a dead message is not forgotten",
        "forget_topics.lua",
        "elseif live == 0 and dead == 0 and",
        "elseif live == 0 and",
    ),
    Mutant(
        "forget-the-paused",
        "a paused topic is not forgotten",
        "forget_topics.lua",
        "if known and not is_paused and",
        "if known and",
    ),
    Mutant(
        "forget-too-early",
        "a topic is forgotten only after it has been unused for long enough",
        "forget_topics.lua",
        " and now_ms - of.idle_since >= idle_ms then",
        " then",
    ),
    Mutant(
        "forget-a-used-one",
        "a topic that was used since the last look is not forgotten",
        "forget_topics.lua",
        " or of.idle_total ~= total or",
        " or",
    ),
    Mutant(
        "forget-leaves-the-counters",
        "the counters of a forgotten topic begin anew",
        "forget_topics.lua",
        "  redis.call('HDEL', counters, unpack(fields))\n",
        "",
    ),
    Mutant(
        "forget-leaves-the-topic",
        "a forgotten topic is not known any more",
        "forget_topics.lua",
        "  redis.pcall('SREM', topics, topic)\n",
        "",
    ),
    Mutant(
        "forget-notes-the-unknown",
        "nothing is noted of a topic that is not known",
        "forget_topics.lua",
        "redis.pcall('SISMEMBER', topics, topic) == 1 and not counted.err",
        "not counted.err",
    ),
    Mutant(
        "forget-refused-when-full",
        "a full server lets the look at topics pass",
        "forget_topics.lua",
        "  relieve(counters)\n",
        "",
    ),
    Mutant(
        "resume-wakes-nobody",
        "who waited for a paused topic is woken",
        "resume_topic.lua",
        "if resumed == 1 then wake(wake_list) end\n",
        "",
    ),
    Mutant(
        "wake-without-end",
        "there is at most one token",
        "lib/wake.lua",
        "if redis.pcall('LLEN', list) == 0 then redis.call('LPUSH', list, '1') end",
        "redis.call('LPUSH', list, '1')",
    ),
    Mutant(
        "hints-not-counted-by-cancel",
        "the entry that a cancelled message leaves behind does not count as pending",
        "cancel_message.lua",
        "  note_hints(counters, topic, stale[topic])\n",
        "",
    ),
    Mutant(
        "hints-of-delayed-ones-counted",
        "a delayed message that is cancelled leaves no entry behind",
        "cancel_message.lua",
        "    local listed = redis.call('ZREM', monitor, id)  -- 1 for a pending one\n",
        "    local listed = 1\n    redis.call('ZREM', monitor, id)\n",
    ),
    Mutant(
        "hints-not-counted-by-take-over",
        "the entry that an expired message leaves behind does not count as pending",
        "handle_timeout_message.lua",
        "for topic, amount in pairs(stale) do note_hints(counters, topic, amount) end\n",
        "",
    ),
    Mutant(
        "hints-counted-though-dropped",
        "an entry that went with its message is not counted as left behind",
        "lib/drop_hint.lua",
        "  return stale\n",
        "  return listed\n",
    ),
    Mutant(
        "hints-not-forgotten-by-claim",
        "an entry that a claim dropped is none any more",
        "claim_message.lua",
        "    note_hints(counters, topic, got - (looked - before), entries[n])\n",
        "",
    ),
    Mutant(
        "hints-not-forgotten-by-purge",
        "an entry that a purge dropped is none any more",
        "purge_topic.lua",
        "note_hints(counters, topic, withdrawn - looked, left - looked)\n",
        "",
    ),
    Mutant(
        "count-before-the-fence",
        "what did not happen is not counted",
        "complete_message.lua",
        "count(counters, topic, 'completed', #finished)",
        "count(counters, topic, 'completed', #ids)",
    ),
    # -- the history
    Mutant(
        "history-before-the-fence",
        "what did not happen is not in the history",
        "complete_message.lua",
        "note(history, topic, now_us, 'c', #finished, spread)",
        "note(history, topic, now_us, 'c', #ids, spread)",
    ),
    Mutant(
        "history-without-end",
        "a sheet of the history expires",
        "lib/history.lua",
        "string.rep('\\0', size), 'EX', history_seconds)",
        "string.rep('\\0', size))",
    ),
    Mutant(
        "history-topics-without-end",
        "so does the set of its topics",
        "lib/history.lua",
        "        redis.pcall('EXPIRE', sheets, history_seconds)\n",
        "",
    ),
    Mutant(
        "history-cut-short",
        "a sheet has its full size from the start",
        "lib/history.lua",
        "if redis.call('STRLEN', sheet) < size then",
        "if false then",
    ),
    Mutant(
        "history-begun-twice",
        "a sheet that there is keeps what it has",
        "lib/history.lua",
        "if redis.call('STRLEN', sheet) < size then",
        "if true then",
    ),
    Mutant(
        "history-times-without-end",
        "so do the times of its minutes",
        "lib/history.lua",
        ", 'EX', recent_seconds)",
        ")",
    ),
    Mutant(
        "history-by-another-clock",
        "a call is counted in the minute of its time",
        "lib/history.lua",
        "local minute = math.floor(now_us / 60000000)",
        "local minute = math.floor(redis.call('TIME')[1] / 60)",
    ),
    Mutant(
        "history-without-take-overs",
        "a message that is taken over is counted as recovered",
        "handle_timeout_message.lua",
        "  note(history, topic, now_us, 'l', causes.lapsed or 0)\n",
        "",
    ),
)


@contextmanager
def mutated(mutant: Mutant) -> Iterator[Mapping[str, Script]]:
    """The scripts without one safeguard.

    Raises:
        Rotten: the script has changed, so must the mutant.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        root = shutil.copytree(SCRIPTS, Path(scratch, "scripts"))
        script = root / mutant.file
        text = script.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            times = text.count(mutant.old)
            raise Rotten(f"mutant {mutant.name}: {mutant.file} has {times} times, not once: {mutant.old}")
        script.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        yield mx_rmq.storage.scripts.load(root)


def draw_histories(count: int) -> list[list[Any]]:
    """The same ones every time, so that a mutant is caught after the same number of them."""
    return list(islice(random_histories(seed=0), count))


def outcome(
    name: str,
    socket: Path,
    drawn: Sequence[Sequence[Any]],
    scripts: Mapping[str, Script] = mx_rmq.storage.scripts.SCRIPTS,
) -> Outcome:
    """Run histories until a promise breaks."""
    with Bench(socket, scripts) as bench:
        try:
            for history in drawn:
                bench(history)
        except Violation as violation:
            return Outcome(name, bench.examples, violation.check, str(violation))
        return Outcome(name, bench.examples, None, "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.model.mutants", description=__doc__, allow_abbrev=False
    )
    names = [mutant.name for mutant in MUTANTS]
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, help="run this mutant")
    parser.add_argument("--list", action="store_true", help="show the mutants and run none")
    parser.add_argument("--json", action="store_true", help="write the outcomes as JSON to the output")
    options = parser.parse_args(arguments)
    mutants = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:34} {mutant.file:28} {mutant.lost}")
        return 0

    said = sys.stderr if options.json else sys.stdout
    started = time.monotonic()
    drawn = draw_histories(BUDGET)
    outcomes = []
    with EmbeddedServer.open() as server:
        sound = outcome("none", server.socket, drawn)
        if sound.check:
            print(
                f"the scripts as they are break a promise after {sound.examples} histories: {sound.what}",
                file=said,
            )
            return 1
        print(
            f"the scripts as they are keep every promise in {sound.examples} histories", file=said, flush=True
        )
        for n, mutant in enumerate(mutants, 1):
            with mutated(mutant) as scripts:
                found = outcome(mutant.name, server.socket, drawn, scripts)
            outcomes.append(found)
            verdict = f"caught after {found.examples:3} by {found.check}" if found.check else "NOT CAUGHT"
            print(f"{n:3}/{len(mutants)} {mutant.name:34} {verdict}", file=said, flush=True)
    caught = sum(found.check is not None for found in outcomes)
    seconds = round(time.monotonic() - started, 1)
    print(f"{caught} of {len(mutants)} mutants caught", file=said)
    if options.json:
        report = {
            "caught": caught,
            "mutants": len(mutants),
            "histories": len(drawn),
            "seconds": seconds,
            "outcomes": [found._asdict() for found in outcomes],
        }
        print(json.dumps(report, indent=2))
    return 0 if caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
