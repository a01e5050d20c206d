# SPDX-License-Identifier: Apache-2.0
"""The whole surface: every function of the installed pynvml, direct and through a sandbox, must do the same."""
