"""Noise: payloads, names, options and bodies that nobody in their right mind would send; seeded."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tests.faults.programs import digest

if TYPE_CHECKING:
    import random

TOPICS = ("jobs", "fuzz.a", "Fuzz_b-2")
HUGE = 10**5000
"""Python itself refuses to write it in digits."""
_NINES = "nines"
"""Stands for as many digits as Python reads; with one more it can neither read nor write them."""
_SIGNS = "={}*\0\n& ~\\\ud800\u00e9\u202e\U0001f600"
_NUMBERS = (0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400)
_ODD_NUMBERS: tuple[Any, ...] = (
    -1.0,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e300,
    HUGE,
    -HUGE,
    True,
    "5",
    b"5",
    [],
    {},
    "",
)


class Noise:
    """Everything strange, from one seeded source of chance."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def produce(self, n: int) -> tuple[dict[str, Any], bool]:
        """The arguments of a call of produce, and whether all of them are in order."""
        fine = True
        call: dict[str, Any] = {"topic": self._dice.choice(TOPICS), "payload": self.sealed()}
        call |= {"priority": self._dice.choice(("high", "normal", "low")), "ttl": 600}
        if self._dice.random() < 0.2:
            call["delay"] = self._dice.random() / 5
        if self._dice.random() < 0.5:
            call["message_id"] = f"f-{n}"
        if self._dice.random() < 0.3:
            call["headers"] = {self.text(20, signs=""): self.text(2000, signs=":{}*\0\n@\u00e9")}
        while self._dice.random() < 0.4:
            fine = False
            option, value = self._odd_option()
            call[option] = value
        if fine and self._dice.random() < 0.2:
            call["payload"] = self.value()
        return call, fine

    def _odd_option(self) -> tuple[str, Any]:
        choose = self._dice.choice
        match self._dice.randrange(7):
            case 0:
                return "topic", self.no_name()
            case 1:
                return "message_id", self.no_name()
            case 2:
                return "payload", self.no_payload()
            case 3:
                return "priority", choose(
                    ("urgent", "", 1, HUGE, None, b"high", ["high"], "high\n", "\ud800")
                )
            case 4:
                odd = (["a"], "a", 5, {"a": 1}, {1: "a"}, {"\ud800": "a"}, {"a": "\ud800"}, {HUGE: HUGE})
                return "headers", choose(odd)
            case 5:
                return choose(("delay", "dedup_for")), choose((*_ODD_NUMBERS, None))
            case _:
                return "ttl", choose((*_ODD_NUMBERS, 0))

    def no_name(self) -> Any:
        """What may name nothing."""
        match self._dice.randrange(4):
            case 0:
                return self._dice.choice(("", "a" * 129, "x" * 65_536, "\n" * 65_536, "a\n", "\na", "é"))
            case 1:
                return self._dice.choice((b"jobs", 5.0, HUGE, ["jobs"], ("jobs",), {}, 1.5, True))
            case _:
                return f"{self.text(100, signs='')}{self._dice.choice(_SIGNS)}{self.text(300)}"

    def no_payload(self) -> Any:
        """What JSON cannot hold, or not for long."""
        inner = self._dice.choice(
            (
                HUGE,
                float("nan"),
                -float("inf"),
                "\ud800",
                b"\xff",
                {1},
                (1, 2),
                object(),
                1j,
                {1: 2},
                {HUGE: 1},
            )
        )
        inner = self._dice.choice(
            (inner, inner, datetime.now(UTC), Decimal("1.5"), self.nested(5000), "x" * 2**21)
        )
        return self._dice.choice((inner, [inner], {"a": {"b": inner}}, {"\udfff": inner}))

    def sealed(self) -> dict[str, Any]:
        """A payload by which its handler sees whether it is whole."""
        what = self.value()
        return {"what": what, "digest": digest(what)}

    def value(self, depth: int = 0) -> Any:
        """Something JSON can hold."""
        match self._dice.randrange(9 if depth < 6 else 5):
            case 0:
                return self._dice.choice((None, True, "", [], {}, -0.0, 5e-324, 1.7976931348623157e308))
            case 1:
                return self._dice.choice(_NUMBERS)
            case 2 | 3:
                return self.text(200, signs=':{}*\0\n@"\\\u00e9\u202e\U0001f600')
            case 4:
                return self._dice.choice((self._dice.random(), -self._dice.random() * 10.0**20))
            case 5 | 6:
                return [self.value(depth + 1) for _ in range(self._dice.randrange(4))]
            case 7 if depth == 0 and self._dice.random() < 0.1:
                return self.nested(self._dice.randrange(150))
            case _:
                names = (self.text(12, signs=":{}*\0\n@") for _ in range(self._dice.randrange(4)))
                return {f"_{name}": self.value(depth + 1) for name in names}

    def nested(self, depth: int) -> Any:
        """A list in a list in a list."""
        nest: Any = 1
        for _ in range(depth):
            nest = [nest]
        return nest

    def text(self, most: int, *, signs: str = _SIGNS) -> str:
        """Letters, and signs among them."""
        length = self._dice.randrange(1, most)
        return "".join(self._dice.choices("abcXYZ019_.-" + signs, k=length))

    def body(self, id_: str, topic: str) -> bytes:
        """Bytes that another client stores as a message."""
        whole: dict[str, Any] = {"v": 1, "id": id_, "topic": topic, "payload": self.sealed()}
        whole["created_at"] = 1_763_230_000.0
        if self._dice.random() < 0.5:  # of format 2
            del whole["v"], whole["id"], whole["topic"]
        match self._dice.randrange(7):
            case 0:
                return self._dice.randbytes(self._dice.randrange(1, 300))
            case 1:
                text = json.dumps(whole).encode()
                return text[: self._dice.randrange(1, len(text))]
            case 2:
                bits = bytearray(json.dumps(whole).encode())
                for _ in range(self._dice.randrange(1, 4)):
                    bits[self._dice.randrange(len(bits))] = self._dice.randrange(256)
                return bytes(bits)
            case 3:
                depth = self._dice.choice((50, 500, 5000, 100_000))
                text = json.dumps({**whole, "payload": 0}).encode()
                return text.replace(b'"payload": 0', b'"payload": ' + b"[" * depth + b"]" * depth)
            case 4:
                return self._dice.choice(
                    (b"null", b"[]", b"{}", b"0", b'""', b"\xef\xbb\xbf{}", b"1e999", b" " * 50)
                )
            case _:
                return self._wrong_envelope(whole)

    def _wrong_envelope(self, whole: dict[str, Any]) -> bytes:
        numbers: tuple[Any, ...] = (_NINES, 0, -5, 2**31, 2**63 - 1, 2**64, 10**30, 1e308, "1", None, [])
        strange = {
            "v": (0, 2, 3, 99, "1", None, 2**64),
            "id": ("other", "", 5, "a:b", "\ud800", "x" * 65_536),
            "topic": ("other", "", None, "a:{b}*", "\0"),
            "payload": (
                _NINES,
                {"what": _NINES},
                None,
                5,
                "text",
                [1],
                {},
                {"fail": 1},
                {"fail": 9},
                {"dead": "said so"},
            ),
            "priority": ("urgent", "", None, 5, "high"),
            "headers": ({"a": 1}, [], None, {"a": "\ud800"}, {"\0": "\n"}),
            "created_at": numbers,
            "ttl": numbers,
            "dedup_for": (-1, 0.5, "x", None, 1e308, -1e308),
            "attempts": numbers,
            "crashes": numbers,
            "replays": numbers,
            "history": ([], [{}], [None], "x", [{"at": 1e308, "worker": "", "error": "x" * 5000}] * 30),
            "foreign": (1, None),
        }
        for name in self._dice.sample(list(strange), self._dice.randrange(1, 4)):
            whole[name] = self._dice.choice(strange[name])
        if self._dice.random() < 0.3:
            whole.pop(self._dice.choice(list(whole)))
        return json.dumps(whole).replace(f'"{_NINES}"', "9" * 4300).encode()
