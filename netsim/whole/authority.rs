//! The certificate authority of a mesh that admits nobody without a certificate. It also issues certificates that end
//! soon. It knows nodes only by name and address.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use meshd::tls::make::{self, CertSubject, Dates, KeyKind};
use meshd_machine::{self as machine, Host};

/// The time of a long-lasting certificate, which is longer than any error of a clock.
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

    /// The name and content of the file with the authority's certificate.
    pub(super) fn file(&self) -> (&'static str, &str) {
        ("ca.crt", &self.certificate)
    }

    /// The name and content of the file with a node's certificate and key. The certificate ends after this time.
    pub(super) fn issue(&self, name: &str, host: Host, ends: Duration) -> (&'static str, String) {
        let key = make::private_key(KeyKind::Ed25519).expect("a key");
        let names = CertSubject {
            common_name: name.to_owned(),
            addresses: vec![machine::address_of(host).into()],
            node_ids: vec![name.to_owned()],
            ..CertSubject::default()
        };
        let request = make::request(&names, &key).expect("a request");
        let made = make::sign(&request, &self.certificate, &self.key, dates(ends), Timestamp::now());
        ("tls.pem", made.expect("a certificate") + &key)
    }

    /// The part of a node's configuration with its TLS profiles.
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
