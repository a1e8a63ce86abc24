"""Schemas of the fields that we use of kinds that are not Kubernetes' own, from their documented interfaces.

What is not listed is a mistake of ours, or is to be looked up and added. `make k8s CRDS=DIR` compares with
the real definitions.
"""

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
ANYTHING: Schema = {"type": "object"}
STRINGS: Schema = {"type": "object", "additionalProperties": STRING}


def record(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": fields,
        "required": [*required],
        "additionalProperties": False,
    }


def several(of: Schema) -> Schema:
    return {"type": "array", "items": of, "minItems": 1}


SECRET_KEY = record(("name", "key"), name=STRING, key=STRING)
POD: Schema = record(("spec",), metadata=ANYTHING, spec=ANYTHING)  # its own test has it as a Pod
RESOURCES = record(requests=STRINGS, limits=STRINGS)

RAY_CLUSTER = record(
    ("rayVersion", "headGroupSpec", "workerGroupSpecs"),
    rayVersion=STRING,
    enableInTreeAutoscaling=FLAG,
    autoscalerOptions=record(
        version={"enum": ["v1", "v2"]},
        idleTimeoutSeconds=NUMBER,
        securityContext=ANYTHING,
        resources=RESOURCES,
    ),
    authOptions=record(("mode",), mode={"enum": ["disabled", "token"]}),
    gcsFaultToleranceOptions=record(
        ("redisAddress",),
        redisAddress=STRING,
        redisPassword=record(valueFrom=record(secretKeyRef=SECRET_KEY)),
    ),
    headGroupSpec=record(("rayStartParams", "template"), rayStartParams=STRINGS, template=POD),
    workerGroupSpecs=several(
        record(
            ("groupName", "template"),
            groupName=STRING,
            replicas=NUMBER,
            minReplicas=NUMBER,
            maxReplicas=NUMBER,
            rayStartParams=STRINGS,
            template=POD,
        )
    ),
)
SPECS: dict[tuple[str, str], Schema] = {
    ("ray.io/v1", "RayService"): record(
        ("rayClusterConfig", "serveConfigV2"),
        serveConfigV2=STRING,
        excludeHeadPodFromServeSvc=FLAG,
        rayClusterDeletionDelaySeconds=NUMBER,
        upgradeStrategy=record(("type",), type={"enum": ["NewCluster", "None"]}),
        rayClusterConfig=RAY_CLUSTER,
    ),
    ("postgresql.cnpg.io/v1", "Cluster"): record(
        ("instances", "storage"),
        instances=NUMBER,
        bootstrap=record(initdb=record(database=STRING, owner=STRING)),
        postgresql=record(
            parameters=STRINGS,
            synchronous=record(
                ("method", "number"),
                method={"enum": ["any", "first"]},
                number=NUMBER,
                dataDurability={"enum": ["required", "preferred"]},
            ),
        ),
        storage=record(size=STRING),
        resources=RESOURCES,
        affinity=record(topologyKey=STRING),
        inheritedMetadata=record(labels=STRINGS),
    ),
    ("cert-manager.io/v1", "Issuer"): record(("selfSigned",), selfSigned=record()),
    ("cert-manager.io/v1", "Certificate"): record(
        ("secretName", "issuerRef"),
        isCA=FLAG,
        commonName=STRING,
        secretName=STRING,
        duration=STRING,
        renewBefore=STRING,
        privateKey=record(algorithm={"enum": ["RSA", "ECDSA"]}, encoding=STRING, size=NUMBER),
        issuerRef=record(("name",), name=STRING, kind=STRING),
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): record(
        ("selector", "podMetricsEndpoints"),
        selector=ANYTHING,
        podMetricsEndpoints=several(
            record(port=STRING, relabelings=several(record(sourceLabels=several(STRING), targetLabel=STRING)))
        ),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): record(
        ("groups",),
        groups=several(
            record(
                ("name", "rules"),
                name=STRING,
                rules=several(
                    record(
                        ("alert", "expr"),
                        alert=STRING,
                        expr=STRING,
                        labels=STRINGS,
                        annotations=STRINGS,
                        **{"for": STRING},
                    )
                ),
            )
        ),
    ),
    ("monitoring.coreos.com/v1alpha1", "ScrapeConfig"): record(
        metricsPath=STRING,
        staticConfigs=several(record(targets=several(STRING))),
        authorization=record(type=STRING, credentials=SECRET_KEY),
    ),
}
