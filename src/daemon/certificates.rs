//! `cert-init`, `cert-makereq` and `cert-signreq`: commands of the configuration that make a certificate
//! instead of running a node. Only translates them for the room `tls`.

use std::process::ExitCode;

use crate::config::typed::certificates::{
    CertInit, CertMakeRequest, CertSignRequest, CertificateCommand, RequestKey, Validity,
};
use crate::tls::commands::{self, CommandError};
use crate::tls::make::{Dates, KeyKind, Subject};

/// Carries the command out and tells a failure on standard error.
pub(super) fn run(command: &CertificateCommand) -> ExitCode {
    let done = match command {
        CertificateCommand::Init(init) => make_authority(init),
        CertificateCommand::MakeRequest(request) => make_request(request),
        CertificateCommand::SignRequest(request) => sign_request(request),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("meshd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn dates(validity: &Validity) -> Dates {
    Dates { not_before: validity.not_before, not_after: validity.not_after }
}

fn make_authority(init: &CertInit) -> Result<(), CommandError> {
    let kind = KeyKind::Rsa(init.bits);
    commands::init(&init.common_name, kind, dates(&init.validity), &init.out_cert, &init.out_key)
}

fn make_request(request: &CertMakeRequest) -> Result<(), CommandError> {
    let names = Subject {
        common_name: request.common_name.clone(),
        dns: request.dns_names.clone(),
        addresses: request.ip_addresses.clone(),
        node_ids: request.node_ids.iter().map(ToString::to_string).collect(),
    };
    let key = match &request.key {
        RequestKey::Existing(file) => commands::RequestKey::Existing(file.clone()),
        RequestKey::New { bits, file } => commands::RequestKey::New(KeyKind::Rsa(*bits), file.clone()),
    };
    commands::make_request(&names, &key, &request.out_request)
}

fn sign_request(request: &CertSignRequest) -> Result<(), CommandError> {
    let authority = (request.ca_cert.as_path(), request.ca_key.as_path());
    let dates = dates(&request.validity);
    commands::sign_request(&request.request, authority, dates, &request.out_cert, |names| {
        request.verify || crate::cli::ask_to_sign(names)
    })
}
