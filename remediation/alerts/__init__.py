"""Alerts: one per incident, delivered to every receiver until it was taken.

    receiver.py                 receivers as configured, and their secrets
    alert.py                    an alert, whatever the receiver
    alert_content.py            the text of an alert about an incident or an alert storm
    alert_lifecycle.py          opened once, updated when something changed, resolved in the end
    alert_storm.py              many incidents of one job at once become one alert
    notification_merge.py       superseded notifications are merged
    delivery_worker.py          one thread per receiver: retries, order, rate limit; repeats open alerts and heartbeats
    http_post.py                one signed HTTP request, bounded in time, without secrets in its errors
    alert_service.py            all of it together, as the leader runs it
    receiver_check.py           a test alert to each receiver
    templates/                  one file per kind of receiver
"""
