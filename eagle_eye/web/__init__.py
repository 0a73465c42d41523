"""The one HTTP port of a process.

    server.py    the port: who may listen and who may ask
    health.py    /healthz, /healthz/live, /healthz/ready
    hooks.py     /hooks/alertmanager: a site's own alerts become events

Each of them gives `Door`s; `server.py` knows none of them.
"""
