"""Print a script that completes commands and options in your shell."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module

from rendezvous_async.cli import COMMANDS
from rendezvous_async.cli.parsing import Parser, command_parser

EXAMPLE = """  source <(rdzv completion bash)      # in ~/.bashrc
  source <(rdzv completion zsh)       # in ~/.zshrc, after compinit"""

_BASH = """_rdzv() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}"
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands} --help --version" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
}}
complete -o default -F _rdzv rdzv
"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def configure(parser: Parser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh"], help="which shell")


def run(options: Namespace) -> int:
    print((_ZSH if options.shell == "zsh" else "") + script(), end="")
    return 0


def script() -> str:
    """Return the completion script."""
    cases = "\n".join(
        f'        {name}) COMPREPLY=($(compgen -W "{" ".join(words(name))}" -- "$current")) ;;' for name in COMMANDS
    )
    return _BASH.format(commands=" ".join(COMMANDS), cases=cases)


def words(name: str) -> list[str]:
    """Return what may stand behind a command: its options, and the choices of its arguments."""
    parser = command_parser(name, import_module(f"rendezvous_async.cli.{name}"))
    found = []
    for action in parser._actions:
        found += [option for option in action.option_strings if option.startswith("--")]
        if not action.option_strings and action.choices:
            found += map(str, action.choices)
    return found
