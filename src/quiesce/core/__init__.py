"""The hold, the scope, the job, the report: everything in flight has an owner."""
