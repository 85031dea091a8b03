"""What every ClientApp's process needs, imported once, before there is an app.

Importing this module does it. Nothing of an app may be imported here, nothing may start a thread,
and nothing may touch a GPU: processes are copied from the one that has done this.
"""

from __future__ import annotations

import gc
import importlib
import os

import flwr.app
import flwr.clientapp
import flwr.supernode.runtime.run_clientapp  # noqa: F401

import mll_flower.processes.warm.client_process  # noqa: F401
from mll_flower.processes.warm.settings import PRELOAD_VARIABLE, module_names

for _name in module_names(os.environ.get(PRELOAD_VARIABLE, "")):
    try:
        importlib.import_module(_name)
    except Exception as error:  # a module may raise anything
        print(f"{_name} is not preloaded: {error!r}", flush=True)

gc.collect()
gc.freeze()  # what is here stays: no collection writes to the pages that copies share
