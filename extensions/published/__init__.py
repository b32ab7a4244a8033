"""The logs of a published study, read again."""
