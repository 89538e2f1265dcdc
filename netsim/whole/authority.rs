//! The authority of a mesh that takes nobody without a certificate. It issues them, and ones that end soon. It knows no node but
//! by its name and address.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use meshd::tls::make::{self, Dates, KeyKind, Subject};
use meshd_machine::{self as machine, Host};

/// How long a certificate is good that is to last: longer than clocks are wrong.
pub(super) const LONG: Duration = Duration::from_secs(30 * 86_400);

pub(super) struct Authority {
    key: String,
    certificate: String,
}

impl Authority {
    pub(super) fn new() -> Self {
        let key = make::private_key(KeyKind::Ed25519).expect("a key");
        let certificate =
            make::authority("the mesh", &key, dates(LONG), Timestamp::now()).expect("a certificate");
        Self { key, certificate }
    }

    /// What is in a node's file of this name.
    pub(super) fn file(&self) -> (&'static str, &str) {
        ("ca.crt", &self.certificate)
    }

    /// A node's certificate that ends then, with its key, for the file of this name.
    pub(super) fn issue(&self, name: &str, host: Host, ends: Duration) -> (&'static str, String) {
        let key = make::private_key(KeyKind::Ed25519).expect("a key");
        let names = Subject {
            common_name: name.to_owned(),
            addresses: vec![machine::address_of(host).into()],
            node_ids: vec![name.to_owned()],
            ..Subject::default()
        };
        let request = make::request(&names, &key).expect("a request");
        let made = make::sign(&request, &self.certificate, &self.key, dates(ends), Timestamp::now());
        ("tls.pem", made.expect("a certificate") + &key)
    }

    /// What a node's configuration says of it.
    pub(super) fn profiles(files: &Path) -> String {
        let (own, ca) = (files.join("tls.pem"), files.join("ca.crt"));
        let (own, ca) = (own.display(), ca.display());
        format!(
            "- tls-server: {{name: mesh, cert: '{own}', key: '{own}', requireclientcert: true, clientcas: '{ca}'}}\n\
             - tls-client: {{name: mesh, cert: '{own}', key: '{own}', rootcas: '{ca}'}}\n"
        )
    }
}

fn dates(ends: Duration) -> Dates {
    let now = Timestamp::now();
    Dates { not_before: Some(now - LONG), not_after: Some(now + ends) }
}
