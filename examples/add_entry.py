"""An example that adds an entry to the schedule while a beat is running."""

from __future__ import annotations

from celery import Celery

from redbeat import RedBeatSchedulerEntry


def main() -> None:
    """Save an entry that runs every two seconds; the running beat finds the new entry."""
    app = Celery(config_source="exampleconf")
    entry = RedBeatSchedulerEntry(
        name="added-while-running",
        task="exampleconf.show",
        schedule=2.0,
        kwargs={"text": "hello from an entry that was added while beat was running"},
        app=app,
    )
    entry.save()
    print(f"added the entry {entry.name!r}, which the running beat sends every 2 seconds")


if __name__ == "__main__":
    main()
