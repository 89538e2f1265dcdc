//! `meshctl cert` and `meshctl key`: makes keys, authorities, requests and certificates, and shows what certificates
//! hold; `verify` checks whether a node would accept one. Works on files; needs no node.

mod verify;

pub(crate) use verify::NodeProfiles;

use std::{
    io::{self, BufRead, IsTerminal},
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum};
use jiff::{Timestamp, Zoned};
use serde_json::{Value, json};

use super::terminal::{self, Colours};
use super::times::zoned;
use super::{
    existing_path,
    exit::{Exit, Failure},
    output::Output,
};
use crate::tls::{
    Facts, Names,
    commands::{self, CommandError, RequestKey},
    inspect,
    make::{CertSubject, Dates, KeyKind},
};

/// Commands on certificates.
#[derive(Debug, Subcommand)]
pub(super) enum Cert {
    /// Make an authority: a key, and a certificate that signs others
    Init(Init),
    /// Make a request for a certificate, and its key
    Makereq(MakeRequest),
    /// Sign a request as an authority
    Signreq(SignRequest),
    /// Show what is in certificate files
    Show(Show),
    /// Check whether a node would accept a certificate
    Verify(verify::Verify),
}

/// Commands on keys for signing work.
#[derive(Debug, Subcommand)]
pub(super) enum Key {
    /// Make a pair of keys: the submitting node signs with one, the others verify with the other
    Generate(Generate),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Rsa,
    Ecdsa,
    Ed25519,
}

impl Kind {
    fn with(self, bits: u32) -> KeyKind {
        match self {
            Self::Rsa => KeyKind::Rsa(bits),
            Self::Ecdsa => KeyKind::EcdsaP256,
            Self::Ed25519 => KeyKind::Ed25519,
        }
    }
}

/// From when to when, in RFC 3339.
#[derive(Debug, Args)]
struct Validity {
    /// Start of validity, as 2030-01-31T12:00:00Z [default: now]
    #[arg(long, value_name = "TIME")]
    notbefore: Option<Timestamp>,
    /// End of validity [default: in ten years for an authority, in a year for others]
    #[arg(long, value_name = "TIME")]
    notafter: Option<Timestamp>,
}

impl Validity {
    fn dates(&self) -> Dates {
        Dates { not_before: self.notbefore, not_after: self.notafter }
    }
}

#[derive(Debug, Args)]
pub(super) struct Init {
    /// Name of the authority
    #[arg(long)]
    commonname: String,
    /// Kind of the key
    #[arg(long, value_enum, default_value = "rsa")]
    key: Kind,
    /// Bits of an RSA key: 2048, 3072, 4096 or 8192
    #[arg(long, default_value = "2048")]
    bits: u32,
    #[command(flatten)]
    validity: Validity,
    /// Certificate file to write
    #[arg(long, value_name = "FILE")]
    outcert: PathBuf,
    /// Private key file to write
    #[arg(long, value_name = "FILE")]
    outkey: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct MakeRequest {
    /// Name in the certificate
    #[arg(long)]
    commonname: String,
    /// Node ID in the certificate; may be repeated
    #[arg(long)]
    nodeid: Vec<String>,
    /// DNS name in the certificate; may be repeated
    #[arg(long)]
    dnsname: Vec<String>,
    /// IP address in the certificate; may be repeated
    #[arg(long)]
    ipaddress: Vec<IpAddr>,
    /// Kind of a new key
    #[arg(long, value_enum, default_value = "rsa")]
    key: Kind,
    /// Bits of a new RSA key: 2048, 3072, 4096 or 8192
    #[arg(long, default_value = "2048")]
    bits: u32,
    /// Request file to write
    #[arg(long, value_name = "FILE")]
    outreq: PathBuf,
    /// Private key file to use
    #[arg(long, value_name = "FILE", conflicts_with = "outkey", required_unless_present = "outkey", value_parser = existing_path())]
    inkey: Option<PathBuf>,
    /// Private key file to make and write
    #[arg(long, value_name = "FILE")]
    outkey: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct SignRequest {
    /// Request file
    #[arg(long, value_name = "FILE", value_parser = existing_path())]
    req: PathBuf,
    /// Certificate file of the authority
    #[arg(long, value_name = "FILE", value_parser = existing_path())]
    cacert: PathBuf,
    /// Private key file of the authority
    #[arg(long, value_name = "FILE", value_parser = existing_path())]
    cakey: PathBuf,
    #[command(flatten)]
    validity: Validity,
    /// Certificate file to write
    #[arg(long, value_name = "FILE")]
    outcert: PathBuf,
    /// Sign without asking
    #[arg(long)]
    verify: bool,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// Certificate files
    #[arg(required = true, value_parser = existing_path())]
    files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Generate {
    /// Kind of the key; receptor nodes know only RSA
    #[arg(long = "type", value_enum, default_value = "rsa")]
    kind: Signing,
    /// Bits of an RSA key: 2048, 3072, 4096 or 8192
    #[arg(long, default_value = "4096")]
    bits: u32,
    /// Private key file to write, for `work-signing`
    #[arg(long, value_name = "FILE")]
    private: PathBuf,
    /// Public key file to write, for `work-verification`
    #[arg(long, value_name = "FILE")]
    public: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Signing {
    Rsa,
    Ed25519,
}

impl Cert {
    pub(super) fn run(self, output: Output, node_profiles: NodeProfiles) -> Result<Exit, Failure> {
        match self {
            Self::Init(init) => {
                let kind = init.key.with(init.bits);
                commands::init(&init.commonname, kind, init.validity.dates(), &init.outcert, &init.outkey)
                    .map_err(failed)?;
                wrote(output, &[&init.outcert, &init.outkey])
            }
            Self::Makereq(request) => request.run(output),
            Self::Signreq(request) => request.run(output),
            Self::Show(show) => show.run(output),
            Self::Verify(verify) => verify.run(output, node_profiles),
        }
    }
}

impl Key {
    pub(super) fn run(self, output: Output) -> Result<Exit, Failure> {
        let Self::Generate(Generate { kind, bits, private, public }) = self;
        let kind = match kind {
            Signing::Rsa => KeyKind::Rsa(bits),
            Signing::Ed25519 => KeyKind::Ed25519,
        };
        commands::generate_key(kind, &private, &public).map_err(failed)?;
        wrote(output, &[&private, &public])
    }
}

impl MakeRequest {
    fn run(self, output: Output) -> Result<Exit, Failure> {
        let mut files = vec![self.outreq.clone()];
        let key = match (self.inkey, self.outkey) {
            (Some(path), _) => RequestKey::Existing(path),
            (None, Some(path)) => {
                files.push(path.clone());
                RequestKey::New(self.key.with(self.bits), path)
            }
            (None, None) => return Err(Failure::usage("give --inkey or --outkey")),
        };
        let names = CertSubject {
            common_name: self.commonname,
            dns: self.dnsname,
            addresses: self.ipaddress,
            node_ids: self.nodeid,
        };
        commands::make_request(&names, &key, &self.outreq).map_err(failed)?;
        wrote(output, &files.iter().map(PathBuf::as_path).collect::<Vec<_>>())
    }
}

impl SignRequest {
    fn run(self, output: Output) -> Result<Exit, Failure> {
        let agree = |names: &Names| self.verify || ask(names, "--verify");
        let authority = (self.cacert.as_path(), self.cakey.as_path());
        commands::sign_request(&self.req, authority, self.validity.dates(), &self.outcert, agree)
            .map_err(failed)?;
        wrote(output, &[&self.outcert])
    }
}

/// Asks a person whether to sign for these names. Where nobody can answer, the answer is no, and `without` says how to
/// sign without asking. A standard input that is no terminal is not read, because it may be the script that we run in.
pub(crate) fn ask(names: &Names, without: &str) -> bool {
    let tell = |text: &str| eprint!("{}", terminal::shown(text, Colours::Dropped));
    if !io::stdin().is_terminal() {
        tell(&format!(
            "Cannot ask here whether to sign for {names}: give {without} to sign without asking.\n"
        ));
        return false;
    }
    tell(&format!(
        "Requested certificate:\n  Subject: {}\n  Names: {names}\nSign certificate (yes/no)? ",
        names.subject
    ));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

impl Show {
    fn run(self, output: Output) -> Result<Exit, Failure> {
        let mut all = Vec::new();
        for path in &self.files {
            for (facts, fingerprint) in inspect::certificates(path).map_err(|e| failed(e.into()))? {
                if !output.json {
                    output.line(&describe(path, &facts, &fingerprint, &output.now()))?;
                }
                all.push(as_json(path, &facts, &fingerprint));
            }
        }
        if output.json {
            output.value(&Value::Array(all))?;
        }
        Ok(Exit::Success)
    }
}

fn describe(path: &Path, facts: &Facts, fingerprint: &str, now: &Zoned) -> String {
    let left = facts.not_after.duration_since(now.timestamp());
    let state = match left.as_hours() {
        _ if left.is_negative() => "EXPIRED".to_owned(),
        hours => format!("{} days left", hours / 24),
    };
    let authority = if facts.is_ca { "an authority, " } else { "" };
    format!(
        "{}: {}\n  names    {}\n  issuer   {}\n  valid    {} to {} ({state})\n  key      {authority}{}\n  serial   {}\n  sha256   {fingerprint}",
        path.display(),
        facts.names.subject,
        facts.names,
        facts.issuer,
        zoned(facts.not_before, now.time_zone()),
        zoned(facts.not_after, now.time_zone()),
        facts.key,
        facts.serial,
    )
}

fn as_json(path: &Path, facts: &Facts, fingerprint: &str) -> Value {
    json!({
        "file": path, "subject": facts.names.subject, "node_ids": facts.names.node_ids,
        "dns_names": facts.names.dns, "ip_addresses": facts.names.addresses, "issuer": facts.issuer,
        "not_before": facts.not_before.to_string(), "not_after": facts.not_after.to_string(),
        "key": facts.key, "authority": facts.is_ca, "serial": facts.serial, "sha256": fingerprint,
    })
}

fn wrote(output: Output, files: &[&Path]) -> Result<Exit, Failure> {
    let lines = files.iter().map(|file| format!("wrote {}", file.display()));
    output.answer(&json!({"written": files}), || lines.collect::<Vec<_>>().join("\n"))
}

fn failed(error: CommandError) -> Failure {
    Failure::new(Exit::Failed, error.to_string())
}
