# SPDX-License-Identifier: Apache-2.0
"""The command ``nvsandbox``."""

from nvsandbox.cli.program import main

__all__ = ["main"]
