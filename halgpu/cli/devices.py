"""Lists the devices that can be used, and the reason for those that cannot."""

from __future__ import annotations

import argparse

from halgpu.cli.flags import Parser


def configure(parser: Parser) -> None:
    """This command has no flags."""


def main(options: argparse.Namespace) -> int:
    """Print one line a device. Exit status 0, also when none can be used."""
    from halgpu.devices import list_devices

    infos = list_devices()
    width = max((len(info.uri) for info in infos), default=0)
    for info in infos:
        text = info.name if info.available else f"not available: {info.reason}"
        print(f"{info.uri:<{width}}  {text}")
    return 0
