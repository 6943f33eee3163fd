"""The paper's tables with our runs next to them. Not part of the installed package.

`paper.toml` holds the paper's rows and what we say of ours, `results/<task>.jsonl` one line a run. `make reproduction`
writes `docs/reproduction.md`, its figures and the README's excerpt from them; `make reproduction ADD="RUN ..."` first
takes finished run folders in.
"""
