"""Logs as JSON, one object a line, with the run, the node and the round in fields of their own.

It needs only the standard ``logging``: whatever the library says carries ``rdzv_run``, ``rdzv_node`` and ``rdzv_round``
as far as it knows them. Two nodes join, one leaves, and the other closes the run.
"""

import json
import logging
import sys

import anyio

import rendezvous_async as rdzv


class JsonFormatter(logging.Formatter):
    FIELDS = ("rdzv_run", "rdzv_node", "rdzv_round")

    def format(self, record: logging.LogRecord) -> str:
        line = {"at": record.created, "level": record.levelname, "logger": record.name, "text": record.getMessage()}
        line |= {name: value for name in self.FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


async def node(name: str) -> None:
    timeouts = rdzv.Timeouts(last_call=0.2, regroup=0.2)
    connected = rdzv.connect("memory://logs", run_id="job-7", nodes="1:2", node=name, timeouts=timeouts)
    async with connected as rendezvous:
        world = await rendezvous.join()
        if name == "bob":
            await rendezvous.leave()
            return
        await world.changed()
        await rendezvous.join()
        await rendezvous.close("done")


async def main() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(node, "alice")
        group.start_soon(node, "bob")


if __name__ == "__main__":
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.getLogger("rendezvous_async").addHandler(handler)
    logging.getLogger("rendezvous_async").setLevel(logging.INFO)
    anyio.run(main)
