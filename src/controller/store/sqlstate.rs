//! What PostgreSQL's refusals mean for the caller, by SQLSTATE: try again at once, wait, or give up with the server's
//! words. Only the code is read, because texts come in the server's language.

/// What becomes of a transaction that PostgreSQL refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransactionRefusal {
    /// Another transaction came first: it is repeated at once.
    Race,
    /// The same transaction works once time or an operator has helped: a full disk, a restart, a failover.
    Passing,
    /// A value that PostgreSQL does not store, whoever sends it.
    Value,
    /// The same transaction is refused for ever: a missing right, a limit of the server, another schema.
    Final,
}

impl TransactionRefusal {
    /// By a SQLSTATE of five letters; the first two are its class.
    pub(super) fn of(code: &str) -> Self {
        match code {
            // serialization_failure, deadlock_detected, unique_violation, foreign_key_violation.
            "40001" | "40P01" | "23505" | "23503" => return Self::Race,
            // cant_change_runtime_param, database_dropped, data_corrupted, index_corrupted.
            "55P02" | "57P04" | "XX001" | "XX002" => return Self::Final,
            _ => {}
        }
        match code.get(..2) {
            // Connections (08), the transaction's end by the server (25, also a read-only standby; 40), a pooler that mixes
            // statements up (26), resources (53), locks (55), an operator or a shutdown (57), the server's system (58)
            // and its own faults (XX).
            Some("08" | "25" | "26" | "40" | "53" | "55" | "57" | "58" | "XX") => Self::Passing,
            Some("22") => Self::Value,
            Some(_) | None => Self::Final,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TransactionRefusal::{self, Final, Passing, Race, Value};

    #[test]
    fn refusals_are_sorted_by_what_mends_them() {
        for (sorted, codes) in [
            (Race, &["40001", "40P01", "23505", "23503"][..]),
            (
                Passing,
                &[
                    "53000", "53100", "53200", "53300", "53400", "25006", "25P02", "25P03", "57014", "57P01",
                    "57P02", "57P03", "57P05", "08000", "08006", "08P01", "40000", "40003", "55P03", "58030",
                    "XX000", "26000",
                ],
            ),
            (Value, &["22001", "22021", "22P02"]),
            (
                Final,
                &[
                    "42501", "42P01", "42703", "54000", "54001", "54011", "23502", "23514", "28000", "28P01",
                    "3D000", "3F000", "0A000", "P0001", "57P04", "55P02", "XX001", "99999", "", "?",
                ],
            ),
        ] {
            for code in codes {
                assert_eq!(TransactionRefusal::of(code), sorted, "{code}");
            }
        }
    }
}
