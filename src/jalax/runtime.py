"""Devices, processes, and compiled programs on disk."""

from jalax._fit.agreement import LostProcess as LostProcess
from jalax._runtime.cache import compilation_cache as compilation_cache
from jalax._runtime.layouts import Layout as Layout
from jalax._runtime.processes import to_host as to_host
