"""The Relation and Type messages in force, which a new segment needs again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trucker.pg.messages import RELATION


class Descriptions:
    """What the source has described so far, by oid."""

    def __init__(self) -> None:
        self._relations: dict[bytes, bytes] = {}
        self._types: dict[bytes, bytes] = {}

    def __contains__(self, oid: bytes) -> bool:
        return oid in self._relations

    def news(self, message: bytes) -> bool | None:
        """None: known already. True: it changes a relation's description. False: new, but changes nothing."""
        previous = self._messages_of_kind(message).get(message[1:5])
        if previous == message:
            return None
        return message.startswith(RELATION) and previous is not None

    def learn(self, message: bytes) -> None:
        self._messages_of_kind(message)[message[1:5]] = message

    def _messages_of_kind(self, message: bytes) -> dict[bytes, bytes]:
        return self._relations if message.startswith(RELATION) else self._types

    def of(self, oids: Iterable[bytes]) -> list[bytes]:
        """The messages that describe these relations, the types they use first. Unknown ones are left out."""
        relations = [self._relations[oid] for oid in oids if oid in self._relations]
        types = {
            kind: self._types[kind] for message in relations for kind in _column_types(message) if kind in self._types
        }
        return [*types.values(), *relations]


def _column_types(relation: bytes) -> Iterator[bytes]:
    """The type oids in a Relation message: oid (4), schema and name (zero-ended), identity (1), columns (2), and
    for each column flags (1), name (zero-ended), type (4), modifier (4)."""
    at = relation.index(0, 5) + 1
    at = relation.index(0, at) + 1
    columns = int.from_bytes(relation[at + 1 : at + 3], "big")
    at += 3
    for _ in range(columns):
        at = relation.index(0, at + 1) + 1
        yield relation[at : at + 4]
        at += 8
