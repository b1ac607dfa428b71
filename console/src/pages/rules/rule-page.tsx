import { Alert, Button, Checkbox, Stack, Text, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconDeviceFloppy, IconTrash } from '@tabler/icons-react';
import { useEffect, useMemo, useState } from 'react';
import { useLocation, useParams } from 'wouter';
import { useHistoryState } from 'wouter/use-browser-location';
import type { Fields } from '../../api/objects';
import { api, ApiError, unwrap, useChange, useRead, type Schemas } from '../../api/client';
import { resolved, type Schema, type SchemaScope } from '../../api/json-schema';
import { useSchema } from '../../api/schemas';
import { mayOnNode, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { newPart } from '../../new-paths';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { useEditedObject, useReportedChange, type EditedObject } from '../../ui/edited-object';
import { CodeEditor } from '../../ui/lazy-code-editor';
import { ObjectSelect } from '../../ui/object-select';
import { Facts, Page, Panel } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { PendingPage } from '../../ui/pending-page';
import { formProblems, GeneratedForm, type Control } from '../../ui/schema-form';
import { ShowCall } from '../../ui/show-call';
import { EmptyState, Loading, Forbidden } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { isVersionConflict, VersionConflict } from '../../ui/version-conflict';
import { ActionsEditor, actionSchema, type Action } from './actions-editor';
import { completions, describeWord, errorPlace } from './language';
import { formatNanoseconds, RuleStateBadge } from './rule-state';
import { RuleTest, testEvent, useRuleTest, type Sample } from './rule-test';
import { RuleTrace } from './rule-trace';
import '../live/live.css';
import './rules.css';

type Rule = Schemas['Rule'];
type Draft = Fields & { sql: string; actions: Action[] };

/** Fields of the API's object that are not a part of the definition. */
const managed = ['name', 'origin', 'version', 'created_at_ms', 'updated_at_ms', 'declared_at', 'warnings'];
/** What the form below the actions shows. */
const options = ['description', 'dialect', 'timezone', 'limits', 'window'];
const statusMs = 2_000;

export default function RulePage() {
  const { name } = useParams<{ name: string }>();
  if (name === undefined || name === newPart) return <NewRule />;
  return <StoredRule key={name} name={decodeURIComponent(name)} />;
}

function NewRule() {
  const { t } = useLingui();
  const mayWrite = mayOnNode(useCaller(), 'operator');
  const given = useHistoryState<{ topic?: string; payload?: string } | null>();
  const topic = given?.topic ?? 'plant/1/temperature';
  const [sample, setSample] = useState<Sample>({
    topic,
    payload: given?.payload ?? '{"value": 31}',
    clientId: 'test',
  });
  const start: Draft = {
    sql: given?.topic
      ? `SELECT payload, clientid\nFROM "${given.topic}"`
      : `SELECT payload.value AS value, clientid\nFROM "plant/+/temperature"\nWHERE payload.value > 30`,
    actions: [],
    enabled: true,
  };
  if (!mayWrite) {
    return (
      <Page title={t`New rule`}>
        <Forbidden>
          <Trans>Rules are written with the role operator.</Trans>
        </Forbidden>
      </Page>
    );
  }
  return (
    <Page title={t`New rule`}>
      <Editor start={start} version={null} name={null} sample={sample} onSample={setSample} isReadOnly={false} />
    </Page>
  );
}

function draftOf(rule: Rule): Draft {
  const entries = Object.entries(rule).filter(
    ([field, value]) => !managed.includes(field) && value !== null && !isUnset(value),
  );
  return Object.fromEntries(entries) as Draft;
}

/** An object all of whose fields are null stands for the defaults. */
function isUnset(value: unknown): boolean {
  return (
    typeof value === 'object' &&
    value !== null &&
    !Array.isArray(value) &&
    Object.values(value).every((inner) => inner === null)
  );
}

function StoredRule({ name }: { name: string }) {
  const caller = useCaller();
  const [, setTab] = useUrlState('tab', 'edit');
  const [sample, setSample] = useState<Sample>({ topic: '', payload: '{}', clientId: 'test' });
  const path = { params: { path: { name } } };
  const rule = useRead(['rules', 'one', name], (signal) =>
    unwrap(api.GET('/api/v1/rules/{name}', { ...path, signal })),
  );
  const status = useRead(
    ['rule-status', name],
    (signal) => unwrap(api.GET('/api/v1/rules/{name}/status', { ...path, signal })),
    { every: statusMs },
  );
  // The sample begins with a topic that the rule selects.
  const sql = rule.data?.sql;
  useEffect(() => {
    const filter = sql && /from\s+"([^"$]+)"/i.exec(sql)?.[1];
    if (filter) {
      const topic = filter.replaceAll('+', 'x').replace('#', 'x');
      setSample((previous) => (previous.topic === '' ? { ...previous, topic } : previous));
    }
  }, [sql]);
  if (!rule.data) {
    return (
      <PendingPage
        title={name}
        query={rule}
        missing={<EmptyState title={<Trans>There is no rule with this name</Trans>} />}
      />
    );
  }
  const data = rule.data;
  const isDeclared = data.origin !== 'api';
  return (
    <Page
      title={name}
      description={data.description}
      aside={status.data && <RuleStateBadge status={status.data} />}
      actions={
        <>
          <ShowCall method="GET" path={`/api/v1/rules/${encodeURIComponent(name)}`} ctl={`rules show ${name}`} />
          {!isDeclared && mayOnNode(caller, 'operator') && <DeleteRule rule={data} />}
        </>
      }
    >
      {status.data?.last_error && (
        <Alert
          color={status.data.last_error.at_ms > Date.now() - 60_000 ? 'red' : 'gray'}
          variant="light"
          title={<Trans>Last error</Trans>}
        >
          <Ago ms={status.data.last_error.at_ms} />: {status.data.last_error.text}
        </Alert>
      )}
      <PageTabs
        tabs={[
          {
            id: 'edit',
            label: <Trans>Definition</Trans>,
            isKept: true,
            content: (
              <>
                {isDeclared && (
                  <Alert color="gray" variant="light" mb="md">
                    <Trans>This rule is declared in {data.declared_at ?? data.origin} and is changed there.</Trans>
                  </Alert>
                )}
                <StoredEditor
                  newest={data}
                  read={async () => (await rule.refetch({ throwOnError: true })).data ?? data}
                  sample={sample}
                  onSample={setSample}
                  isReadOnly={isDeclared || !mayOnNode(caller, 'operator')}
                />
              </>
            ),
          },
          {
            id: 'trace',
            label: <Trans>Live trace</Trans>,
            content: mayOnNode(caller, 'operator') ? (
              <RuleTrace
                name={name}
                onSample={(topic, payload) => {
                  setSample({ ...sample, topic, payload });
                  setTab('edit');
                }}
              />
            ) : (
              <EmptyState title={<Trans>You may not see this</Trans>}>
                <Trans>A trace contains payloads of clients; it requires the role operator.</Trans>
              </EmptyState>
            ),
          },
          {
            id: 'metrics',
            label: <Trans>Metrics</Trans>,
            content: status.data ? <Metrics status={status.data} /> : <Loading />,
          },
        ]}
      />
    </Page>
  );
}

function Metrics({ status }: { status: Schemas['RuleStatus'] }) {
  const { counters } = status;
  const count = (name: string) => formatNumber(counters[name] ?? 0);
  return (
    <div className="grid">
      <Panel title={<Trans>Evaluations</Trans>}>
        <Facts
          rows={[
            [<Trans>Matched</Trans>, count('matched')],
            [<Trans>With output</Trans>, count('passed')],
            [<Trans>Without output</Trans>, count('no_result')],
            [<Trans>Failed: type or range</Trans>, count('failed_value')],
            [<Trans>Failed: limit</Trans>, count('failed_limit')],
            [<Trans>Failed: other</Trans>, count('failed_other')],
            [<Trans>Median duration</Trans>, formatNanoseconds(status.p50_ns)],
            [<Trans>99th percentile</Trans>, formatNanoseconds(status.p99_ns)],
          ]}
        />
      </Panel>
      <Panel title={<Trans>Actions</Trans>}>
        <Facts
          rows={[
            [<Trans>Done</Trans>, count('actions_succeeded')],
            [<Trans>Queued for sinks</Trans>, count('actions_queued')],
            [<Trans>Failed</Trans>, count('actions_failed')],
            [<Trans>Dropped</Trans>, count('actions_dropped')],
          ]}
        />
      </Panel>
      <Panel title={<Trans>Windows</Trans>}>
        <Facts
          rows={[
            [<Trans>Late events</Trans>, count('window_late')],
            [<Trans>Without room</Trans>, count('window_full')],
            [<Trans>Without a time</Trans>, count('window_untimed')],
            [<Trans>Ahead of the clock</Trans>, count('window_ahead')],
          ]}
        />
      </Panel>
    </div>
  );
}

function useSaveRule(name: string) {
  return useChange(
    async ({ value, ifMatch }: { value: Draft; ifMatch: number | null }) =>
      (await unwrap(
        api.PUT('/api/v1/rules/{name}', {
          params: {
            path: { name },
            header: ifMatch === null ? { 'If-None-Match': '*' } : { 'If-Match': `"${ifMatch}"` },
          },
          body: value as unknown as Schemas['RuleInput'],
        }),
      )) as Rule,
    [['rules'], ['rule-status']],
  );
}

interface StoredEditorProps extends Pick<EditorProps, 'sample' | 'onSample' | 'isReadOnly'> {
  newest: Rule;
  read: () => Promise<Rule>;
}

/** Edits the stored rule; what was typed stays, also when somebody else saves another version. */
function StoredEditor({ newest, read, ...props }: StoredEditorProps) {
  const edited = useEditedObject(newest);
  const { base } = edited;
  const start = useMemo(() => draftOf(base), [base]);
  return (
    <Editor
      key={base.version}
      start={start}
      version={base.version ?? null}
      name={base.name}
      stored={{ ...edited, read }}
      {...props}
    />
  );
}

interface EditorProps {
  start: Draft;
  /** The version that is edited; another one in the meantime is not overwritten. */
  version: number | null;
  /** `null`: a new rule. */
  name: string | null;
  /** Absent: a new rule. */
  stored?: EditedObject<Rule> & { read: () => Promise<Rule> };
  sample: Sample;
  onSample: (sample: Sample) => void;
  isReadOnly: boolean;
}

function Editor({ start, version, name, stored, sample, onSample, isReadOnly }: EditorProps) {
  const { t } = useLingui();
  const [, navigate] = useLocation();
  const [draft, setDraft] = useState<Draft>(start);
  const [newName, setNewName] = useState('');
  const scope = useSchema('RuleInput');
  const language = useRead(['rule-language'], (signal) => unwrap(api.GET('/api/v1/rule-language', { signal })), {
    isConstant: true,
  });
  const rules = useRead(['rules', 'names'], (signal) =>
    unwrap(api.GET('/api/v1/rules', { params: { query: { limit: 1000 } }, signal })),
  );
  const ruleNames = useMemo(() => (rules.data?.data ?? []).map((rule) => rule.name), [rules.data]);
  const complete = useMemo(
    () => (language.data ? completions(language.data, ruleNames) : undefined),
    [language.data, ruleNames],
  );
  const test = useRuleTest(draft, sample);
  const invalid = test.error instanceof ApiError && test.error.status === 422 ? errorPlace(test.error.message) : null;
  const isSqlWrong = invalid?.place !== null && invalid !== null;
  const chosen = name ?? newName.trim();
  const save = useSaveRule(chosen);
  // Of its own, so that a conflict stays visible until it is resolved.
  const resolution = useSaveRule(chosen);
  const isChanged = JSON.stringify(draft) !== JSON.stringify(start);
  useReportedChange(isChanged, stored?.setChanged);
  const isRejected = isVersionConflict(save.error);
  const isConflict = stored !== undefined && !save.isPending && (isRejected || (isChanged && stored.isOutdated));
  const actionItems = scope?.root.properties?.actions?.items;
  const areActionsWrong =
    actionItems !== undefined &&
    draft.actions.some((action) => formProblems(action, actionSchema(actionItems, action.kind), scope).length > 0);
  const store = async (by: typeof save, value: Draft, ifMatch: number | null) => {
    const saved = await by.mutateAsync({ value, ifMatch });
    notifications.show({ message: t`The rule ${chosen} is saved.` });
    for (const warning of saved.warnings ?? []) notifications.show({ message: warning, color: 'yellow' });
    stored?.load(saved);
    if (name === null) navigate(`/rules/${encodeURIComponent(chosen)}?tab=trace`);
  };
  // The form shows what is wrong.
  const submit = () => void store(save, draft, version).catch(() => undefined);
  return (
    <div className="editor-layout">
      <Stack gap="md">
        <Panel title={<Trans>Statement</Trans>}>
          <Stack gap="sm">
            {name === null && (
              <TextInput
                label={t`Name`}
                required
                maxLength={128}
                value={newName}
                error={
                  /[^\w.:-]/.test(newName)
                    ? t`letters, digits and _ - . : only`
                    : ruleNames.includes(chosen)
                      ? t`There is a rule with this name.`
                      : false
                }
                onChange={(event) => setNewName(event.currentTarget.value)}
              />
            )}
            <CodeEditor
              label={t`SQL statement`}
              language="sql"
              value={draft.sql}
              onChange={(sql) => setDraft((previous) => ({ ...previous, sql }))}
              complete={complete}
              describe={(word) => (language.data ? describeWord(language.data, word) : null)}
              error={invalid?.place ?? null}
              isReadOnly={isReadOnly}
              minHeight={130}
            />
            <Text size="sm" c="var(--tg-critical)" role="alert" mih={20}>
              {invalid?.text ?? (test.error && !invalid ? test.error.message : '')}
            </Text>
            <Text size="xs" c="dimmed">
              <Trans>
                Ctrl-Space completes names. Point at a function or field for its description. After FROM: a topic
                filter, or a name such as $EVENT.CONNECT.
              </Trans>
            </Text>
          </Stack>
        </Panel>
        <Panel title={<Trans>Actions for each output</Trans>}>
          {scope && actionItems ? (
            <ActionsEditor
              schema={resolved(actionItems, scope)}
              scope={scope}
              actions={draft.actions}
              onChange={(actions) => setDraft({ ...draft, actions })}
              controls={{ sink: sinkControl }}
              isReadOnly={isReadOnly}
            />
          ) : (
            <Loading lines={3} />
          )}
        </Panel>
        <Panel title={<Trans>Options</Trans>}>
          <Stack gap="sm">
            <Checkbox
              label={t`Enabled`}
              checked={draft.enabled !== false}
              disabled={isReadOnly}
              onChange={(event) => setDraft({ ...draft, enabled: event.currentTarget.checked })}
            />
            {scope ? (
              <GeneratedForm
                schema={optionSchema(scope)}
                scope={scope}
                value={draft}
                onChange={(next) => setDraft(next as Draft)}
              />
            ) : (
              <Loading lines={3} />
            )}
          </Stack>
        </Panel>
        {!isReadOnly && (
          <div className="editor-footer">
            {isConflict ? (
              <VersionConflict
                base={start}
                mine={draft}
                read={async () => {
                  const theirs = await stored.read();
                  return {
                    value: draftOf(theirs),
                    save: (value) => store(resolution, value, theirs.version ?? null),
                    load: () => stored.load(theirs),
                  };
                }}
              />
            ) : (
              save.error && (
                <Text size="sm" c="var(--tg-critical)" role="alert">
                  {isRejected ? <Trans>There is a rule with this name.</Trans> : save.error.message}
                </Text>
              )
            )}
            <div className="row wrap">
              <Button
                size="sm"
                leftSection={<IconDeviceFloppy size={15} />}
                loading={save.isPending}
                disabled={
                  chosen === '' ||
                  /[^\w.:-]/.test(chosen) ||
                  isSqlWrong ||
                  areActionsWrong ||
                  (name !== null && !isChanged)
                }
                onClick={submit}
              >
                <Trans>Save</Trans>
              </Button>
              <ShowCall
                method="PUT"
                path={`/api/v1/rules/${encodeURIComponent(chosen || 'NAME')}`}
                body={draft}
                ctl={`rules ${name === null ? 'add' : 'set'} ${chosen || 'NAME'} --from rule.json`}
              />
              {isChanged && name !== null && (
                <Text size="sm" c="dimmed">
                  <Trans>not saved yet</Trans>
                </Text>
              )}
            </div>
          </div>
        )}
      </Stack>
      <RuleTest
        sql={draft.sql}
        sample={sample}
        onSample={onSample}
        outcome={test.data}
        problem={test.error !== null}
        body={{ rule: draft, event: testEvent(sample) }}
      />
    </div>
  );
}

function optionSchema(scope: SchemaScope): Schema {
  const properties = Object.entries(scope.root.properties ?? {}).filter(([field]) => options.includes(field));
  return { type: 'object', properties: Object.fromEntries(properties) };
}

const sinkControl: Control = (props) => <ObjectSelect {...props} kind="sinks" />;

function DeleteRule({ rule }: { rule: Rule }) {
  const { t } = useLingui();
  const [, navigate] = useLocation();
  const [isAsking, setAsking] = useState(false);
  const { name } = rule;
  return (
    <>
      <Button variant="default" leftSection={<IconTrash size={14} />} onClick={() => setAsking(true)}>
        <Trans>Delete</Trans>
      </Button>
      {isAsking && (
        <ConfirmDeletion
          title={<Trans>Delete the rule {name}?</Trans>}
          action={<Trans>Delete the rule</Trans>}
          call={{ path: `/api/v1/rules/${encodeURIComponent(name)}`, ctl: `rules delete ${name}` }}
          onClose={() => setAsking(false)}
          invalidates={[['rules'], ['rule-status']]}
          message={t`The rule ${name} was deleted.`}
          onDeleted={() => navigate('/rules')}
        >
          <Text size="sm">
            <Trans>
              This deletes the statement with its {formatNumber(rule.actions.length)} actions, its open windows, stored
              values and counters.
            </Trans>
          </Text>
        </ConfirmDeletion>
      )}
    </>
  );
}
