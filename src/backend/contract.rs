//! What every backend promises.
