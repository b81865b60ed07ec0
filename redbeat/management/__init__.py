"""Operations on a whole schedule: search, forecast, bulk changes, checks and copies."""
