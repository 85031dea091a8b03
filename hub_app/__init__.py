"""The hub part of the ServerApp: one hub of a deployment.

`server_app.app` calls it when the run config says ``role = "hub"``; the work is done in
`mll_flower.apps.hub_run`.
"""
