"""These tests need eight devices: `make test` gives a run of their own eight CPU devices.

By hand: XLA_FLAGS=--xla_force_host_platform_device_count=8 pytest tests/multidevice
"""

from __future__ import annotations

import jax

collect_ignore_glob = [] if len(jax.devices()) >= 8 else ["*.py"]
