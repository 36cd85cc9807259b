"""What opens the simulators and nothing else. Apart from them, so that knowing it does not load them."""

TELEGRAM_TOKEN = "777000001:simulated-bot-not-a-secret"  # noqa: S105 - opens nothing but a simulator
CALENDAR_CLIENT_ID = "simulated-client.apps.butlers.example"
CALENDAR_CLIENT_SECRET = "simulated-client-not-a-secret"  # noqa: S105 - opens nothing but a simulator
CALENDAR_REFRESH_TOKEN = "simulated-refresh-not-a-secret"  # noqa: S105 - opens nothing but a simulator
