"""The figures of the embedded captioners, from an evaluation, into the one file that all pages are checked against.

    python scripts/collect_figures.py RESULTS

RESULTS is what `tellapart evaluate --out RESULTS` wrote, as `make reproduce` runs it.  Into
src/tellapart/album/figures.json goes {data: {row: {score: [value, low, high]}}} as tables show them, times 100 with a
digit, and under "differences" those of each row from the first.  tests/test_readme.py compares the README, the
questions and the model cards with it, and says which figure of which page is another one.
"""

import argparse
import json
import re
from pathlib import Path

OUT = Path(__file__).parents[1] / "src" / "tellapart" / "album" / "figures.json"
SCORES = ("TT R@1", "TT@6", "ObjPrec", "Unidiomatic", "CIDEr-D", "R@1[judge]", "Prec", "Rep", "UniCap")


def rounded(*values: float) -> list[float]:
    return [round(100 * value, 1) for value in values]


def collected(results: dict, details: dict) -> dict:
    figures: dict = {}
    for data, rows in results.items():
        of_data: dict = figures.setdefault(data, {"differences": {}})
        for row, scores in rows.items():
            about = details[data]["models"][row]
            names = {name.partition("[")[0] if name.startswith("Obj") else name: name for name in scores}
            of_data[row] = {s: rounded(scores[names[s]], *about["interval"][names[s]]) for s in SCORES if s in names}
            apart = {s: about.get("difference", {}).get(names[s]) for s in SCORES if s in names}
            found = {s: rounded(one["difference"], *one["interval"]) for s, one in apart.items() if one}
            of_data["differences"] |= {row: found} if found else {}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    folder = parser.parse_args().results
    results, details = (json.loads((folder / f"{name}.json").read_text()) for name in ("results", "details"))
    text = json.dumps(collected(results, details), indent=1)
    OUT.write_text(re.sub(r"\n\s*(?=[-\d\]])", "", text) + "\n")  # a score is a line


if __name__ == "__main__":
    main()
