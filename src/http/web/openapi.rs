//! The description of the API (OpenAPI 3.1), made from the table of routes and the types of the answers, so that it
//! cannot differ from them. Knows no requests.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::refusal::ErrorReport;
use super::routes::{self, Needs, Route};

/// The body of a request, or of an answer.
pub(super) enum ApiContent {
    Nothing,
    Json(fn(&mut SchemaGenerator) -> Schema),
    /// Bytes of that media type.
    Bytes(&'static str),
}

/// JSON of that type.
pub(super) const fn json_of<T: JsonSchema>() -> ApiContent {
    ApiContent::Json(SchemaGenerator::subschema_for::<T>)
}

impl ApiContent {
    fn describe(&self, schemas: &mut SchemaGenerator) -> Option<Value> {
        match self {
            Self::Nothing => None,
            Self::Json(schema) => Some(json!({"application/json": {"schema": schema(schemas)}})),
            Self::Bytes(media_type) => Some(json!({ *media_type: {} })),
        }
    }
}

/// The description of these routes in a program of that version.
pub(super) fn document(version: &str, routes: &[Route]) -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut taken = settings.clone().for_deserialize().into_generator();
    let mut given = settings.for_serialize().into_generator();
    let mut paths = Map::new();
    for route in routes.iter().filter(|route| route.path.starts_with("/api/")) {
        let operations = paths.entry(route.path).or_insert_with(|| json!({}));
        operations[route.method.as_str().to_lowercase()] = operation(route, &mut taken, &mut given);
    }
    let refused = json_of::<ErrorReport>().describe(&mut given);
    let mut schemas = taken.take_definitions(true);
    schemas.extend(given.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {"title": "meshd", "version": version, "description": "docs/web.md says what it means."},
        "servers": [{"url": "../.."}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {"ErrorReport": {"description": "Why it is not carried out", "content": refused}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn operation(route: &Route, taken: &mut SchemaGenerator, given: &mut SchemaGenerator) -> Value {
    let mut parameters: Vec<Value> = route
        .query
        .iter()
        .map(|(name, kind)| json!({"name": name, "in": "query", "schema": kind.schema(taken)}))
        .collect();
    if let Some((name, kind)) = routes::parameter(route.path) {
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": kind.schema(taken)}));
    }
    let (security, level) = match route.needs {
        Needs::Nothing | Needs::Anybody => (json!([]), "none".to_owned()),
        Needs::Presence => (json!([{}, {"token": []}]), "read, or a client of this machine".to_owned()),
        Needs::Level(level) => (json!([{"token": []}]), level.to_string()),
    };
    let mut success = json!({"description": route.about});
    if let Some(content) = route.gives.describe(given) {
        success["content"] = content;
    }
    let status = match (&route.gives, &route.takes) {
        (ApiContent::Nothing, _) => "204",
        (_, ApiContent::Bytes(_)) => "201",
        _ => "200",
    };
    let mut operation = json!({
        "summary": route.about,
        "description": format!("Needs the level {level}."),
        "parameters": parameters,
        "security": security,
        "responses": {status: success, "default": {"$ref": "#/components/responses/ErrorReport"}},
    });
    if let Some(content) = route.takes.describe(taken) {
        operation["requestBody"] = json!({ "content": content });
    }
    operation
}
