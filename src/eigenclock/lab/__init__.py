"""The lab: small, repeatable training runs that compare encodings on real text."""
