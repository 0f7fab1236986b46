"""Our rewards in other trainers: TRL, ms-swift, verl, and by HTTP any other.  None of them is a dependency."""
