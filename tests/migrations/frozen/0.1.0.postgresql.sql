CREATE TABLE archived_job (
	id BIGINT NOT NULL,
	type VARCHAR(255) NOT NULL,
	payload JSONB DEFAULT '{}' NOT NULL,
	queue VARCHAR(255) DEFAULT 'default' NOT NULL,
	idempotency_key VARCHAR(255),
	status VARCHAR(16) DEFAULT 'ready' NOT NULL,
	run_at TIMESTAMP WITH TIME ZONE NOT NULL,
	attempts INTEGER DEFAULT '0' NOT NULL,
	max_attempts INTEGER DEFAULT '5' NOT NULL,
	refunds INTEGER DEFAULT '0' NOT NULL,
	claims INTEGER DEFAULT '0' NOT NULL,
	locked_by VARCHAR(255),
	locked_until TIMESTAMP WITH TIME ZONE,
	last_error TEXT,
	errors JSONB DEFAULT '[]' NOT NULL,
	result JSONB,
	lease_expirations INTEGER DEFAULT '0' NOT NULL,
	last_lease_expired_at TIMESTAMP WITH TIME ZONE,
	schedule_id BIGINT,
	slot TIMESTAMP WITH TIME ZONE,
	trace JSONB,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	started_at TIMESTAMP WITH TIME ZONE,
	finished_at TIMESTAMP WITH TIME ZONE,
	archived_at TIMESTAMP WITH TIME ZONE NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT ck_archived_job_status CHECK (status IN ('ready', 'running', 'done', 'failed', 'dead'))
);

CREATE TABLE job (
	id BIGSERIAL NOT NULL,
	type VARCHAR(255) NOT NULL,
	payload JSONB DEFAULT '{}' NOT NULL,
	queue VARCHAR(255) DEFAULT 'default' NOT NULL,
	idempotency_key VARCHAR(255),
	status VARCHAR(16) DEFAULT 'ready' NOT NULL,
	run_at TIMESTAMP WITH TIME ZONE NOT NULL,
	attempts INTEGER DEFAULT '0' NOT NULL,
	max_attempts INTEGER DEFAULT '5' NOT NULL,
	refunds INTEGER DEFAULT '0' NOT NULL,
	claims INTEGER DEFAULT '0' NOT NULL,
	locked_by VARCHAR(255),
	locked_until TIMESTAMP WITH TIME ZONE,
	last_error TEXT,
	errors JSONB DEFAULT '[]' NOT NULL,
	result JSONB,
	lease_expirations INTEGER DEFAULT '0' NOT NULL,
	last_lease_expired_at TIMESTAMP WITH TIME ZONE,
	schedule_id BIGINT,
	slot TIMESTAMP WITH TIME ZONE,
	trace JSONB,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	started_at TIMESTAMP WITH TIME ZONE,
	finished_at TIMESTAMP WITH TIME ZONE,
	PRIMARY KEY (id),
	CONSTRAINT ck_job_status CHECK (status IN ('ready', 'running', 'done', 'failed', 'dead'))
);

CREATE TABLE schedule (
	id BIGSERIAL NOT NULL,
	name VARCHAR(255) NOT NULL,
	job_type VARCHAR(255) NOT NULL,
	payload JSONB DEFAULT '{}' NOT NULL,
	queue VARCHAR(255),
	cron VARCHAR(255) NOT NULL,
	timezone VARCHAR(255) DEFAULT 'UTC' NOT NULL,
	"offset" DOUBLE PRECISION,
	enabled BOOLEAN DEFAULT true NOT NULL,
	catch_up VARCHAR(16) DEFAULT 'latest' NOT NULL,
	catch_up_limit INTEGER DEFAULT '100' NOT NULL,
	overlap VARCHAR(16) DEFAULT 'allow' NOT NULL,
	declared_by VARCHAR(255),
	retired_at TIMESTAMP WITH TIME ZONE,
	planned_cron VARCHAR(255),
	planned_timezone VARCHAR(255),
	planned_enabled BOOLEAN,
	next_run_at TIMESTAMP WITH TIME ZONE,
	last_slot TIMESTAMP WITH TIME ZONE,
	slots_missed BIGINT DEFAULT '0' NOT NULL,
	overlaps_skipped BIGINT DEFAULT '0' NOT NULL,
	last_error TEXT,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT uq_schedule_name UNIQUE (name)
);

CREATE INDEX ix_archived_job_archived ON archived_job (archived_at, id);

CREATE INDEX ix_archived_job_key ON archived_job (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE INDEX ix_job_expired ON job (last_lease_expired_at) WHERE last_lease_expired_at IS NOT NULL;

CREATE INDEX ix_job_finished ON job (status, finished_at, id) WHERE status IN ('done', 'failed', 'dead');

CREATE UNIQUE INDEX ix_job_key ON job (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE INDEX ix_job_ready ON job (queue, type, run_at, id) WHERE status = 'ready';

CREATE INDEX ix_job_running ON job (locked_by, id) WHERE status = 'running';

CREATE INDEX ix_job_schedule ON job (schedule_id, slot) WHERE schedule_id IS NOT NULL AND status IN ('ready', 'running');

CREATE INDEX ix_schedule_due ON schedule (next_run_at, id) WHERE retired_at IS NULL;

CREATE INDEX ix_schedule_edited ON schedule (id) WHERE retired_at IS NULL AND (planned_cron IS NULL OR cron != planned_cron OR planned_timezone IS NULL OR timezone != planned_timezone OR planned_enabled IS NULL OR enabled != planned_enabled OR enabled = (next_run_at IS NULL));

CREATE INDEX ix_schedule_retired ON schedule (retired_at) WHERE retired_at IS NOT NULL;
