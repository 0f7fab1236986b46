"""The command line of the campaigns."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from campaigns import fuzz, kill, links, load, network, pages, report, resources, senders
from campaigns.report import Row

# name: the campaign, and how much it does if nothing else is asked for
CAMPAIGNS: dict[str, tuple[Callable[..., Iterator[Row]], int, str]] = {
    "kill": (kill.run, 300, "kills"),
    "fuzz": (fuzz.run, 15_000, "inputs"),
    "load": (load.run, 200, "people"),
    "senders": (senders.run, 100, "senders of each kind"),
    "resources": (resources.run, 1000, "files"),
    "network": (network.run, 100, "commands"),
    "links": (links.run, 100, "links"),
    "pages": (pages.run, 1000, "pages"),
}


def main() -> int:
    parser = argparse.ArgumentParser("python -m campaigns", description=__doc__)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"{', '.join(CAMPAIGNS)} (default: all)")
    much = ", ".join(f"{name} {count} {unit}" for name, (_, count, unit) in CAMPAIGNS.items())
    parser.add_argument("--count", type=int, help=f"how much is tried (default: {much})")
    parser.add_argument("--only", default="", help="only what begins so, with commas: commands, kinds of files")
    parser.add_argument("--seed", type=int, default=0, help="another one tries something else (default: 0)")
    parser.add_argument("--out", type=Path, help="the table, in Markdown")
    request = parser.parse_args()
    if unknown := [name for name in request.campaigns if name not in CAMPAIGNS]:
        parser.error(f"there is no campaign {unknown[0]}; use {', '.join(CAMPAIGNS)}")
    rows = list[Row]()
    for name in request.campaigns or CAMPAIGNS:
        run, count, _ = CAMPAIGNS[name]
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
            for row in run(Path(folder).resolve(), request.count or count, request.seed, request.only):
                rows.append(row)
                print(" | ".join(row.cells()), flush=True)
                for sentence in [] if row.planted else row.failed:
                    print(f"  {sentence}", flush=True)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    table = "\n".join(report.lines(rows)) + "\n"
    print(f"\n{table}")
    if request.out:
        request.out.write_text(table)
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
