"""The live page of ``mll-flower watch``: a local web page that follows a run while it goes on.

A `Source` looks at what is watched: a run's folder (`run_source`), a sweep's (`sweep_source`) or a
deployment (`deployment_source`). `looking` asks it now and then, and `server` pushes what is new to
every browser that is connected, as server-sent events. `page` and `live_script` are the page, made
of the parts of the HTML report.
"""
