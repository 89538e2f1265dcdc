//! An authority and certificates in a directory of their own.

use std::fs;
use std::path::PathBuf;

use jiff::{Timestamp, ToSpan};

use crate::tls::make::{self, CertSubject, Dates, KeyKind};
use crate::tls::{ClientOptions, ClientProfile, Files, ServerOptions, ServerProfile};

/// An authority whose files, and those that it signs, lie in one directory.
pub(crate) struct Pki {
    dir: tempfile::TempDir,
}

impl Pki {
    /// A directory with an authority in `ca.crt` and `ca.key`.
    pub(crate) fn new() -> Self {
        let pki = Self { dir: tempfile::tempdir().unwrap() };
        pki.authority("ca");
        pki
    }

    /// The same, with a certificate for each of these nodes.
    pub(crate) fn of(nodes: &[&str]) -> Self {
        let pki = Self::new();
        nodes.iter().for_each(|node| pki.node(node));
        pki
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Replaces a file as a careful operator does: writes a new one next to it, and renames that.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let new = self.path(&format!("{name}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path(name)).unwrap();
    }

    /// Another authority, in `NAME.crt` and `NAME.key`.
    pub(crate) fn authority(&self, name: &str) {
        let key = make::private_key(KeyKind::EcdsaP256).unwrap();
        self.write(
            &format!("{name}.crt"),
            make::authority(&format!("the {name}"), &key, Dates::default(), now()).unwrap(),
        );
        self.write(&format!("{name}.key"), key);
    }

    /// A node's certificate, for 127.0.0.1 and localhost too, in `NODE.crt` and `NODE.key`.
    pub(crate) fn node(&self, node: &str) {
        self.issue(node, &node_names(node), "ca", Dates::default());
    }

    /// A certificate signed by an authority, in `NAME.crt` and `NAME.key`.
    pub(crate) fn issue(&self, name: &str, names: &CertSubject, authority: &str, dates: Dates) {
        let key = make::private_key(KeyKind::EcdsaP256).unwrap();
        self.issue_for(name, names, authority, dates, &key);
    }

    pub(crate) fn issue_for(
        &self,
        name: &str,
        names: &CertSubject,
        authority: &str,
        dates: Dates,
        key: &str,
    ) {
        let request = make::request(names, key).unwrap();
        let (ca, ca_key) = (self.text(&format!("{authority}.crt")), self.text(&format!("{authority}.key")));
        self.write(&format!("{name}.crt"), make::sign(&request, &ca, &ca_key, dates, now()).unwrap());
        self.write(&format!("{name}.key"), key);
    }

    /// A self-signed certificate, marked as an authority's as `openssl req -x509` does, in `NAME.crt` and `NAME.key`.
    pub(crate) fn self_signed(&self, name: &str, names: &CertSubject, dates: Dates) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = marked_as_authority(names, dates);
        self.write(&format!("{name}.crt"), params.self_signed(&key).unwrap().pem());
        self.write(&format!("{name}.key"), key.serialize_pem());
    }

    /// The same, signed by the authority.
    pub(crate) fn signing(&self, name: &str, names: &CertSubject) {
        let key = rcgen::KeyPair::generate().unwrap();
        let ca = rcgen::KeyPair::from_pem(&self.text("ca.key")).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(&self.text("ca.crt"), ca).unwrap();
        let params = marked_as_authority(names, days(-1, 30));
        self.write(&format!("{name}.crt"), params.signed_by(&key, &issuer).unwrap().pem());
        self.write(&format!("{name}.key"), key.serialize_pem());
    }

    pub(crate) fn files(&self, name: &str) -> Files {
        Files {
            identity: Some((self.path(&format!("{name}.crt")), self.path(&format!("{name}.key")))),
            authorities: Some(self.path("ca.crt")),
            ..Files::default()
        }
    }

    /// Settings that show `name` and require a certificate from clients.
    pub(crate) fn server_options(&self, name: &str) -> ServerOptions {
        ServerOptions {
            name: "srv".to_owned(),
            files: self.files(name),
            require_client_cert: true,
            ..ServerOptions::default()
        }
    }

    pub(crate) fn client_options(&self, name: &str) -> ClientOptions {
        ClientOptions { name: "cli".to_owned(), files: self.files(name), ..ClientOptions::default() }
    }

    pub(crate) fn server(&self, name: &str) -> ServerProfile {
        ServerProfile::open(self.server_options(name), None).unwrap()
    }

    pub(crate) fn client(&self, name: &str) -> ClientProfile {
        ClientProfile::open(self.client_options(name), None).unwrap()
    }

    /// A revocation list of the authority, naming these certificates.
    pub(crate) fn revoke(&self, list: &str, revoked: &[&str]) {
        let serial = |name: &&str| {
            let der = make::pem_section(&self.text(&format!("{name}.crt")), "CERTIFICATE").unwrap();
            let facts = crate::tls::Facts::of(&der).unwrap();
            let digits: Vec<u8> =
                facts.serial.bytes().map(|c| (c as char).to_digit(16).unwrap() as u8).collect();
            let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
            rcgen::RevokedCertParams {
                serial_number: rcgen::SerialNumber::from_slice(&bytes),
                revocation_time: date(-1),
                reason_code: None,
                invalidity_date: None,
            }
        };
        let key = rcgen::KeyPair::from_pem(&self.text("ca.key")).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(&self.text("ca.crt"), key).unwrap();
        let params = rcgen::CertificateRevocationListParams {
            this_update: date(-1),
            next_update: date(30),
            crl_number: rcgen::SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(serial).collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        self.write(list, params.signed_by(&issuer).unwrap().pem().unwrap());
    }
}

fn marked_as_authority(names: &CertSubject, dates: Dates) -> rcgen::CertificateParams {
    // Taken from a request, because `make::request` knows how node IDs are encoded.
    let request = make::request(names, &make::private_key(KeyKind::EcdsaP256).unwrap()).unwrap();
    let request = rcgen::CertificateSigningRequestParams::from_pem(&request).unwrap();
    let at = |time: Option<Timestamp>| {
        time::OffsetDateTime::from_unix_timestamp(time.unwrap().as_second()).unwrap()
    };
    let mut params = request.params;
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    (params.not_before, params.not_after) = (at(dates.not_before), at(dates.not_after));
    params
}

fn date(days: i64) -> time::OffsetDateTime {
    time::OffsetDateTime::from_unix_timestamp(now().as_second() + days * 86_400).unwrap()
}

pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Validity from and to, in days from now.
pub(crate) fn days(from: i64, to: i64) -> Dates {
    let at = |days: i64| Some(now() + (days * 24).hours());
    Dates { not_before: at(from), not_after: at(to) }
}

pub(crate) fn node_names(node: &str) -> CertSubject {
    CertSubject {
        common_name: node.to_owned(),
        dns: vec!["localhost".to_owned()],
        addresses: vec!["127.0.0.1".parse().unwrap()],
        node_ids: vec![node.to_owned()],
    }
}
