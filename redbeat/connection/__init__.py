"""Build Redis clients with retries from the settings and URLs of each topology."""
