CREATE TABLE public.attempts (
    uid uuid NOT NULL,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    started_at bigint NOT NULL,
    ended_at bigint NOT NULL,
    result text NOT NULL,
    status integer,
    reply text,
    detail text,
    node text NOT NULL,
    created_at bigint NOT NULL
);
CREATE TABLE public.ended_ids (
    uid uuid NOT NULL,
    request_hash bytea NOT NULL,
    generation integer NOT NULL,
    until bigint NOT NULL
);
CREATE TABLE public.forecast (
    id bigint NOT NULL,
    counted_at bigint NOT NULL,
    bins text NOT NULL
);
CREATE TABLE public.history (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea
)
PARTITION BY RANGE (ended_at);
CREATE TABLE public.history_d20780 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea
);
CREATE TABLE public.history_d20781 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea
);
CREATE TABLE public.history_d20782 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea
);
CREATE TABLE public.history_d20783 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea
);
CREATE TABLE public.history_d20784 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea
);
CREATE TABLE public.history_d20785 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea
);
CREATE TABLE public.history_d20786 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea
);
CREATE TABLE public.history_d20787 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea
);
CREATE TABLE public.history_default (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea
);
CREATE TABLE public.node_reports (
    name text NOT NULL,
    at bigint NOT NULL,
    report text NOT NULL
);
CREATE TABLE public.nodes (
    name text NOT NULL,
    incarnation text NOT NULL,
    address text NOT NULL,
    version text NOT NULL,
    started_at bigint NOT NULL,
    beat_at bigint NOT NULL
);
CREATE TABLE public.replays (
    at bigint NOT NULL,
    shard integer NOT NULL,
    node text NOT NULL,
    cause text NOT NULL,
    cursor_at bigint NOT NULL,
    detail text NOT NULL
);
CREATE TABLE public.seaql_migrations (
    version character varying NOT NULL,
    applied_at bigint NOT NULL
);
CREATE TABLE public.shards (
    shard integer NOT NULL,
    epoch bigint NOT NULL,
    owner text,
    lease_until bigint NOT NULL,
    watermark bigint DEFAULT 0 NOT NULL,
    cursor_at bigint DEFAULT 0 NOT NULL,
    wheel text DEFAULT ''::text NOT NULL,
    spared bigint DEFAULT '-1'::integer NOT NULL
);
CREATE TABLE public.store (
    one integer NOT NULL,
    incarnation bigint NOT NULL,
    namespace text NOT NULL,
    shards integer NOT NULL,
    created_at bigint NOT NULL,
    id text DEFAULT ''::text NOT NULL
);
CREATE TABLE public.timers (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    via smallint,
    kind smallint,
    trace bytea
);
CREATE TABLE public.totals (
    name text NOT NULL,
    slot integer NOT NULL,
    value bigint NOT NULL
);
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20780 FOR VALUES FROM ('1795392000000') TO ('1795478400000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20781 FOR VALUES FROM ('1795478400000') TO ('1795564800000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20782 FOR VALUES FROM ('1795564800000') TO ('1795651200000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20783 FOR VALUES FROM ('1795651200000') TO ('1795737600000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20784 FOR VALUES FROM ('1795737600000') TO ('1795824000000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20785 FOR VALUES FROM ('1795824000000') TO ('1795910400000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20786 FOR VALUES FROM ('1795910400000') TO ('1795996800000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20787 FOR VALUES FROM ('1795996800000') TO ('1796083200000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_default DEFAULT;
INSERT INTO public.attempts VALUES ('041c4fcc-b3a5-0f62-a2b5-68ad36b446ca', 1, 1, 1795424787132, 1795424787133, 'failed', 500, NULL, 'answered 500 Internal Server Error', 'old', 1795424787119);
INSERT INTO public.ended_ids VALUES ('0e93007d-233d-10ca-3d93-d5227dd7dd47', '\xed0b5884ad73db56bfe8c763ccea4873', 1, 1796029587095);
INSERT INTO public.ended_ids VALUES ('d3e5e582-d41b-6073-209f-4d3f9b2d9ee0', '\x389289896dea3279574c127212db6271', 1, 1796029587116);
INSERT INTO public.ended_ids VALUES ('ecd88bda-43d3-b594-4536-da731b1f5459', '\x9762db95cd2183dd12b7cfa6bd0e7ef7', 1, 1796029587170);
INSERT INTO public.forecast VALUES (1, 1795424787025, '{"ends":[1795518000000,1800835200000,2111702400000],"bins":[{},{},{}],"later":0}');
INSERT INTO public.history_d20780 VALUES ('0e93007d-233d-10ca-3d93-d5227dd7dd47', 'delivered', true, NULL, 46, 4, 1795424787077, 1795424827087, NULL, 1, 1, 1, 1, 1, -8114239917647536700, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok","headers":{"x-team":"blue"}}}', '\x7b226e223a317d', NULL, NULL, '\xed0b5884ad73db56bfe8c763ccea4873', 1795424787077, 1795424787087, 'old', 1795424787095, '{"generation":1,"attempt":1,"started_at":1795424787088,"ended_at":1795424787090,"result":"ok","status":200,"node":"old"}', 1, NULL, NULL);
INSERT INTO public.history_d20780 VALUES ('d3e5e582-d41b-6073-209f-4d3f9b2d9ee0', 'dead', true, NULL, 57, 7, 1795424787097, 1795424827109, NULL, 1, 1, 1, 1, 1, -8114239917647536700, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/gone"}}', NULL, NULL, NULL, '\x389289896dea3279574c127212db6271', 1795424787097, 1795424787109, 'old', 1795424787116, '{"generation":1,"attempt":1,"started_at":1795424787110,"ended_at":1795424787111,"result":"failed","status":410,"detail":"answered 410 Gone","node":"old"}', 1, NULL, NULL);
INSERT INTO public.history_d20780 VALUES ('ecd88bda-43d3-b594-4536-da731b1f5459', 'cancelled', true, NULL, 61, 5, 1795428387153, 1795428387153, NULL, 1, 0, 0, 2, 0, -8114239917647536700, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', NULL, NULL, NULL, '\x9762db95cd2183dd12b7cfa6bd0e7ef7', 1795424787153, NULL, NULL, 1795424787170, NULL, NULL, NULL, NULL);
INSERT INTO public.nodes VALUES ('old', '01a207a819b776ec8db202c40f90c8d8', '127.0.0.1:7611', '0.1.0', 1795424786980, 1795424788052);
INSERT INTO public.seaql_migrations VALUES ('m20261121_000001_timers', 1795424786);
INSERT INTO public.seaql_migrations VALUES ('m20261121_000002_wheels', 1795424786);
INSERT INTO public.seaql_migrations VALUES ('m20261121_000003_leaner', 1795424786);
INSERT INTO public.seaql_migrations VALUES ('m20261122_000004_target_kind', 1795424786);
INSERT INTO public.seaql_migrations VALUES ('m20261122_000005_null_kind', 1795424786);
INSERT INTO public.seaql_migrations VALUES ('m20261122_000006_observe', 1795424786);
INSERT INTO public.seaql_migrations VALUES ('m20261122_000007_dead', 1795424786);
INSERT INTO public.shards VALUES (0, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (1, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (2, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (3, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (4, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (5, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (6, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (7, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (8, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (9, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (10, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (30, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (31, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (32, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (33, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (34, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (35, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (36, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (37, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (38, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (39, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (40, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (41, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (42, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (19, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (20, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (21, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (22, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (23, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (24, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (25, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (26, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (27, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (28, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (29, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (49, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (50, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (51, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (52, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (53, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (54, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (55, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (56, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (57, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (58, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (59, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (60, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (61, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (11, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (12, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (13, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (14, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (15, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (16, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (17, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (18, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (43, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (44, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (45, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (46, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (47, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (48, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (62, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.shards VALUES (63, 1, 'old', 1795424791053, 1795428420000, 1795424789000, '01a207a819b875348360a310ae053894 01a207a81a3072f29b5a6a780cf0f253', -1);
INSERT INTO public.store VALUES (1, 1, 'default', 64, 1795424786804, '01a207a81975752a8ebe2d05f64a98db');
INSERT INTO public.timers VALUES ('7a06206c-743b-5279-7f5f-c6e35ac856d9', 'far', true, 'user:1', 7, 0, 4922899200000, 4922899200000, NULL, 1, 0, 0, 1, 0, -8114239917647536700, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x7b226e223a317d', '{"app":"shop"}', '{"retry":{"attempts":5,"first":"PT1S","cap":"PT1H"}}', '\x5412a8647bf8bf8f41e086b04f771dd5', 1795424787022, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('0fa8bdb4-fd94-32df-583c-a7d6245378ff', 'minute', true, NULL, 43, 0, 4922899260000, 4922899260000, NULL, 1, 0, 0, 1, 0, -8114239917647536700, true, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x32', NULL, NULL, '\xe5143463e485d859b33585991634035a', 1795424787057, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('041c4fcc-b3a5-0f62-a2b5-68ad36b446ca', 'retrying', true, NULL, 20, 2, 1795424787119, 1795424823470, NULL, 1, 1, 1, 1, 1, -8114239917647536700, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/fail"}}', '\x7b226e223a317d', NULL, '{"retry":{"attempts":5,"first":"PT30S","cap":"PT1H"}}', '\x0f032c0bd0d791be5b039246ba2df061', 1795424787119, 1795424787131, 'old', 1, NULL, NULL);
INSERT INTO public.timers VALUES ('083e3e3b-5cfe-98d2-84bb-584b21d57eb4', 'claimed', true, NULL, 50, 1, 1795424787138, 1795424827144, NULL, 1, 1, 1, 1, 1, -8114239917647536700, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/hang"}}', '\x7b226e223a317d', NULL, NULL, '\x18f60f8436e5d1418b232d0b1bec8952', 1795424787138, 1795424787144, 'old', 1, NULL, NULL);
INSERT INTO public.timers VALUES ('a34ce816-97f7-7b47-6faf-beda8bc3f866', 'moved', true, NULL, 44, 0, 1795424791197, 1795424791197, NULL, 2, 0, 0, 2, 0, -8114239917647536700, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x7b226e223a317d', NULL, NULL, '\xddb76ae9396a8b98cd899010861dd8f5', 1795424787184, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('06722ef7-d94b-26d3-917c-81a994c936b5', 'overdue', true, 'user:1', 7, 0, 1795424791213, 1795424791213, NULL, 1, 0, 0, 1, 0, -8114239917647536700, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x7b226e223a317d', NULL, NULL, '\x374dc13e1dae6a991f4af5177d41269d', 1795424787213, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.totals VALUES ('registered', 53, 1);
INSERT INTO public.totals VALUES ('delivered', 55, 1);
INSERT INTO public.totals VALUES ('dead', 53, 1);
INSERT INTO public.totals VALUES ('registered', 52, 3);
INSERT INTO public.totals VALUES ('cancelled', 53, 1);
INSERT INTO public.totals VALUES ('registered', 54, 3);
INSERT INTO public.totals VALUES ('registered', 55, 2);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (uid, generation, attempt);
ALTER TABLE ONLY public.ended_ids
    ADD CONSTRAINT ended_ids_pkey PRIMARY KEY (uid);
ALTER TABLE ONLY public.forecast
    ADD CONSTRAINT forecast_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.node_reports
    ADD CONSTRAINT node_reports_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.seaql_migrations
    ADD CONSTRAINT seaql_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.shards
    ADD CONSTRAINT shards_pkey PRIMARY KEY (shard);
ALTER TABLE ONLY public.store
    ADD CONSTRAINT store_pkey PRIMARY KEY (one);
ALTER TABLE ONLY public.timers
    ADD CONSTRAINT timers_pkey PRIMARY KEY (uid);
ALTER TABLE ONLY public.totals
    ADD CONSTRAINT totals_pkey PRIMARY KEY (name, slot);
CREATE INDEX attempts_ended_at ON public.attempts USING btree (ended_at);
CREATE INDEX ended_ids_until ON public.ended_ids USING btree (until);
CREATE INDEX history_due ON ONLY public.history USING btree (due_at);
CREATE INDEX history_d20780_due_at_idx ON public.history_d20780 USING btree (due_at);
CREATE INDEX history_dead ON ONLY public.history USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20780_ended_at_idx ON public.history_d20780 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_owner ON ONLY public.history USING btree (owner, due_at) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20780_owner_due_at_idx ON public.history_d20780 USING btree (owner, due_at) WHERE (owner IS NOT NULL);
CREATE INDEX history_uid ON ONLY public.history USING btree (uid);
CREATE INDEX history_d20780_uid_idx ON public.history_d20780 USING btree (uid);
CREATE INDEX history_d20781_due_at_idx ON public.history_d20781 USING btree (due_at);
CREATE INDEX history_d20781_ended_at_idx ON public.history_d20781 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20781_owner_due_at_idx ON public.history_d20781 USING btree (owner, due_at) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20781_uid_idx ON public.history_d20781 USING btree (uid);
CREATE INDEX history_d20782_due_at_idx ON public.history_d20782 USING btree (due_at);
CREATE INDEX history_d20782_ended_at_idx ON public.history_d20782 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20782_owner_due_at_idx ON public.history_d20782 USING btree (owner, due_at) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20782_uid_idx ON public.history_d20782 USING btree (uid);
CREATE INDEX history_d20783_due_at_idx ON public.history_d20783 USING btree (due_at);
CREATE INDEX history_d20783_ended_at_idx ON public.history_d20783 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20783_owner_due_at_idx ON public.history_d20783 USING btree (owner, due_at) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20783_uid_idx ON public.history_d20783 USING btree (uid);
CREATE INDEX history_d20784_due_at_idx ON public.history_d20784 USING btree (due_at);
CREATE INDEX history_d20784_ended_at_idx ON public.history_d20784 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20784_owner_due_at_idx ON public.history_d20784 USING btree (owner, due_at) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20784_uid_idx ON public.history_d20784 USING btree (uid);
CREATE INDEX history_d20785_due_at_idx ON public.history_d20785 USING btree (due_at);
CREATE INDEX history_d20785_ended_at_idx ON public.history_d20785 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20785_owner_due_at_idx ON public.history_d20785 USING btree (owner, due_at) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20785_uid_idx ON public.history_d20785 USING btree (uid);
CREATE INDEX history_d20786_due_at_idx ON public.history_d20786 USING btree (due_at);
CREATE INDEX history_d20786_ended_at_idx ON public.history_d20786 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20786_owner_due_at_idx ON public.history_d20786 USING btree (owner, due_at) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20786_uid_idx ON public.history_d20786 USING btree (uid);
CREATE INDEX history_d20787_due_at_idx ON public.history_d20787 USING btree (due_at);
CREATE INDEX history_d20787_ended_at_idx ON public.history_d20787 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20787_owner_due_at_idx ON public.history_d20787 USING btree (owner, due_at) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20787_uid_idx ON public.history_d20787 USING btree (uid);
CREATE INDEX history_default_due_at_idx ON public.history_default USING btree (due_at);
CREATE INDEX history_default_ended_at ON public.history_default USING btree (ended_at);
CREATE INDEX history_default_ended_at_idx ON public.history_default USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_default_owner_due_at_idx ON public.history_default USING btree (owner, due_at) WHERE (owner IS NOT NULL);
CREATE INDEX history_default_uid_idx ON public.history_default USING btree (uid);
CREATE INDEX replays_at ON public.replays USING btree (at);
CREATE UNIQUE INDEX shards_epoch ON public.shards USING btree (shard, epoch);
CREATE INDEX timers_due ON public.timers USING btree (due_at);
CREATE INDEX timers_held_back ON public.timers USING btree (state, due_at) WHERE (state = ANY (ARRAY[2, 3]));
CREATE INDEX timers_owner ON public.timers USING btree (owner, due_at) WHERE (owner IS NOT NULL);
CREATE INDEX timers_wake ON public.timers USING btree (shard, wake_at);
ALTER INDEX public.history_due ATTACH PARTITION public.history_d20780_due_at_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20780_ended_at_idx;
ALTER INDEX public.history_owner ATTACH PARTITION public.history_d20780_owner_due_at_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20780_uid_idx;
ALTER INDEX public.history_due ATTACH PARTITION public.history_d20781_due_at_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20781_ended_at_idx;
ALTER INDEX public.history_owner ATTACH PARTITION public.history_d20781_owner_due_at_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20781_uid_idx;
ALTER INDEX public.history_due ATTACH PARTITION public.history_d20782_due_at_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20782_ended_at_idx;
ALTER INDEX public.history_owner ATTACH PARTITION public.history_d20782_owner_due_at_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20782_uid_idx;
ALTER INDEX public.history_due ATTACH PARTITION public.history_d20783_due_at_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20783_ended_at_idx;
ALTER INDEX public.history_owner ATTACH PARTITION public.history_d20783_owner_due_at_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20783_uid_idx;
ALTER INDEX public.history_due ATTACH PARTITION public.history_d20784_due_at_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20784_ended_at_idx;
ALTER INDEX public.history_owner ATTACH PARTITION public.history_d20784_owner_due_at_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20784_uid_idx;
ALTER INDEX public.history_due ATTACH PARTITION public.history_d20785_due_at_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20785_ended_at_idx;
ALTER INDEX public.history_owner ATTACH PARTITION public.history_d20785_owner_due_at_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20785_uid_idx;
ALTER INDEX public.history_due ATTACH PARTITION public.history_d20786_due_at_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20786_ended_at_idx;
ALTER INDEX public.history_owner ATTACH PARTITION public.history_d20786_owner_due_at_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20786_uid_idx;
ALTER INDEX public.history_due ATTACH PARTITION public.history_d20787_due_at_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20787_ended_at_idx;
ALTER INDEX public.history_owner ATTACH PARTITION public.history_d20787_owner_due_at_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20787_uid_idx;
ALTER INDEX public.history_due ATTACH PARTITION public.history_default_due_at_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_default_ended_at_idx;
ALTER INDEX public.history_owner ATTACH PARTITION public.history_default_owner_due_at_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_default_uid_idx;
