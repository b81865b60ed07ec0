"""Operations on a whole schedule: search, forecast, apply, check and copy."""
