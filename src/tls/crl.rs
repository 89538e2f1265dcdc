//! Revocation lists that come from elsewhere: whether an authority has signed one, its number, and what it revokes.
//!
//! Works on PEM texts. It refuses to know where lists are kept.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use super::proof::{has_signed, pem_blocks};
use crate::os::hex;

/// A revocation list; or several with one number, one of each authority, while one takes the place of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevocationList {
    /// Its number; of two lists the higher one is the later.
    pub number: u64,
    /// The serial number of each revoked certificate, in hexadecimal, with the time.
    pub revoked: Vec<(String, Timestamp)>,
    /// What was signed, in PEM, and nothing else.
    pub text: String,
}

/// The lists in one text: that of an authority, and that of another which takes its place.
const MOST_PARTS: usize = 4;

/// What one list says.
struct ListPart {
    number: u64,
    revoked: Vec<(String, Timestamp)>,
    /// Which of the authorities have signed it.
    signers: Vec<usize>,
    /// It, in PEM.
    text: String,
}

impl RevocationList {
    /// Reads a list that each of the authorities in `authorities` has signed.
    ///
    /// # Errors
    /// It is none, has no number, or lacks the signature of one of them.
    pub fn read(list: &str, authorities: &str) -> Result<Self, &'static str> {
        let authorities = pem_blocks(authorities, "CERTIFICATE");
        let blocks = pem_blocks(list, "X509 CRL");
        if blocks.is_empty() {
            return Err("this is not a revocation list");
        }
        if blocks.len() > MOST_PARTS {
            return Err("these are too many revocation lists for one");
        }
        let parts = blocks.iter().map(|block| ListPart::read(block, &authorities));
        let mut parts: Vec<ListPart> = parts.collect::<Result<_, _>>()?;
        parts.retain(|part| !part.signers.is_empty());
        let number = parts.iter().map(|part| part.number).max().unwrap_or_default();
        parts.retain(|part| part.number == number);
        let is_by = |signer| parts.iter().any(|part| part.signers.contains(&signer));
        if authorities.is_empty() || !(0..authorities.len()).all(is_by) {
            return Err("the revocation list is not signed by the authority");
        }
        let text = parts.iter().map(|part| part.text.as_str()).collect();
        let revoked: BTreeMap<_, _> = parts.into_iter().flat_map(|part| part.revoked).collect();
        Ok(Self { number, revoked: revoked.into_iter().collect(), text })
    }
}

fn pem_of(kind: &str, der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let lines = encoded.as_bytes().chunks(64).map(|line| format!("{}\n", String::from_utf8_lossy(line)));
    format!("-----BEGIN {kind}-----\n{}-----END {kind}-----\n", lines.collect::<String>())
}

impl ListPart {
    fn read(block: &str, authorities: &[&str]) -> Result<Self, &'static str> {
        let der = CertificateRevocationListDer::from_pem_slice(block.as_bytes())
            .map_err(|_| "this is not a revocation list")?;
        let (rest, parsed) =
            CertificateRevocationList::from_der(&der).map_err(|_| "this is not a revocation list")?;
        // What is taken in here must be what profiles can load: they refuse everything if they cannot.
        if !rest.is_empty() || webpki::OwnedCertRevocationList::from_der(&der).is_err() {
            return Err("the revocation list cannot be used");
        }
        let digits = parsed.crl_number().map(|number| number.to_bytes_be());
        let digits = digits.filter(|digits| digits.len() <= 8).ok_or("the revocation list has no number")?;
        let number = digits.iter().fold(0, |number, digit| number << 8 | u64::from(*digit));
        let revoked = parsed.iter_revoked_certificates().map(|one| {
            let at = Timestamp::from_second(one.revocation_date.timestamp()).unwrap_or_default();
            (hex::print(one.raw_serial()), at)
        });
        let (signed, signature) = (parsed.tbs_cert_list.as_ref(), &parsed.signature_value.data);
        let signers = (0..authorities.len()).filter(|at| has_signed(authorities[*at], signed, signature));
        let text = pem_of("X509 CRL", &der);
        Ok(Self { number, revoked: revoked.collect(), signers: signers.collect(), text })
    }
}

#[cfg(test)]
mod tests {
    use super::super::make::{self, Dates, KeyKind};
    use super::*;

    #[test]
    fn a_list_is_what_its_authority_has_signed() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let key = make::private_key(KeyKind::EcdsaP256).unwrap();
        let authority = make::authority("a", &key, Dates::default(), now).unwrap();
        let revoked = vec![("4a0b".to_owned(), now)];
        let list = make::revocation_list(&authority, &key, &revoked, 77, now).unwrap();
        let read = RevocationList { number: 77, revoked: revoked.clone(), text: list.clone() };
        assert_eq!(RevocationList::read(&list, &authority), Ok(read));
        let other = make::private_key(KeyKind::EcdsaP256).unwrap();
        let other = make::authority("a", &other, Dates::default(), now).unwrap();
        assert!(RevocationList::read(&list, &other).unwrap_err().contains("not signed"));
        assert!(RevocationList::read(&authority, &authority).unwrap_err().contains("not a revocation list"));
    }

    #[test]
    fn while_there_are_two_authorities_both_have_signed() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let made = |name: &str| {
            let key = make::private_key(KeyKind::EcdsaP256).unwrap();
            (make::authority(name, &key, Dates::default(), now).unwrap(), key)
        };
        let (a, b, stranger) = (made("a"), made("b"), made("a"));
        let list = |(certificate, key): &(String, String), number| {
            make::revocation_list(certificate, key, &[("4a0b".to_owned(), now)], number, now).unwrap()
        };
        let both = format!("{}{}", b.0, a.0);
        let (of_a, of_b) = (list(&a, 7), list(&b, 7));
        let lists = format!("{of_a}{}{of_b}", list(&stranger, 9));
        let read = RevocationList::read(&lists, &both).unwrap();
        // Nobody else's gets into the file.
        assert_eq!((read.number, read.revoked.len(), read.text), (7, 1, format!("{of_a}{of_b}")));
        assert_eq!(RevocationList::read(&lists, &a.0).unwrap().text.matches("BEGIN").count(), 1);
        for one in [list(&b, 7), format!("{}{}", list(&a, 6), list(&b, 7)), list(&stranger, 7)] {
            assert!(RevocationList::read(&one, &both).unwrap_err().contains("not signed"));
        }
        assert!(RevocationList::read(&lists, "").is_err());
        // A byte behind the list, or another algorithm around it, is nothing that was signed, and no profile loads it.
        let der = CertificateRevocationListDer::from_pem_slice(of_a.as_bytes()).unwrap();
        let longer = pem_of("X509 CRL", &[&der, &b"x"[..]].concat());
        let algorithm = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
        let at = der.windows(algorithm.len()).rposition(|window| window == algorithm).unwrap();
        let mut other = der.to_vec();
        other[at + algorithm.len() - 1] = 3;
        for poisoned in [longer, pem_of("X509 CRL", &other)] {
            assert!(RevocationList::read(&poisoned, &a.0).unwrap_err().contains("cannot be used"));
        }
    }
}
