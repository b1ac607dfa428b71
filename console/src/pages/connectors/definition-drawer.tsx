import { Alert, Button, Drawer, Group, Select, Stack, Text, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlugConnected, IconTrash } from '@tabler/icons-react';
import { useState, type FormEvent, type ReactNode } from 'react';
import { namedChoices } from '../../api/choice-names';
import type { Schema, SchemaScope } from '../../api/json-schema';
import {
  isStored,
  objectPath,
  send,
  useObject,
  useSave,
  type ConfigurationObject,
  type Fields,
} from '../../api/objects';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { useEditedObject, useReportedChange, type EditedObject } from '../../ui/edited-object';
import { formProblems, GeneratedForm, type Control } from '../../ui/schema-form';
import { ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { ErrorState, Loading } from '../../ui/states';
import { isVersionConflict, VersionConflict } from '../../ui/version-conflict';

/** The result of a test, as the API reports it for connectors, sinks and pull sources. */
interface TestOutcome {
  is_reachable?: boolean;
  detail?: string;
  is_ok?: boolean;
  error?: string | null;
  rows?: number;
  values?: number;
  data?: unknown[];
}

export interface Definition {
  /** Such as `/api/v1/sinks`. */
  path: string;
  /** The subcommand of `tidegate ctl`. */
  command: string;
  title: ReactNode;
  newTitle: ReactNode;
  /** The schema for the values so far; absent while something has still to be chosen. */
  schemaOf: (values: Fields) => { schema: Schema; scope?: SchemaScope } | undefined;
  /** What is chosen first: the type, or the connector. */
  chooser?: (values: Fields, onChange: (values: Fields) => void, isNew: boolean) => ReactNode;
  /** Fields of which exactly one is set. */
  oneOf?: readonly string[];
  hidden?: readonly string[];
  controls?: Record<string, Control>;
  /** Where a definition is tested: before it is stored, or only afterwards. */
  testPath?: (name: string | null) => string | null;
  deletion: (name: string) => ReactNode;
}

interface DrawerProps {
  definition: Definition;
  /** `null`: a new object. */
  name: string | null;
  initial?: Fields;
  mayChange: boolean;
  onClose: () => void;
  onSaved?: (name: string) => void;
}

/** Fields that nearly everybody sets, in the order in which people think of them. */
const usual = [
  ...['server', 'servers', 'url', 'urls', 'brokers', 'nodes', 'endpoint', 'bucket', 'region', 'database', 'directory'],
  ...['username', 'password', 'token', 'access_key_id', 'secret_access_key', 'from', 'to', 'subject'],
  ...['sql', 'command', 'table', 'columns', 'collection', 'index', 'file', 'path', 'method', 'topic', 'topics', 'key'],
  ...['payload', 'body', 'text', 'interval_s'],
];

const frame = ['name', 'origin', 'declared_at', 'version', 'created_at_ms', 'updated_at_ms'];

/** Without what the node adds, and without `null`, which stands for the default. */
function valuesOf(object: ConfigurationObject): Fields {
  return Object.fromEntries(Object.entries(withoutNull(object) as Fields).filter(([name]) => !frame.includes(name)));
}

function withoutNull(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutNull);
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).filter(([, inner]) => inner !== null);
  return Object.fromEntries(entries.map(([name, inner]) => [name, withoutNull(inner)]));
}

export function DefinitionDrawer(props: DrawerProps) {
  const { definition, name, onClose } = props;
  return (
    <Drawer opened onClose={onClose} position="right" size="lg" title={name ?? definition.newTitle}>
      {name === null ? <DrawerForm {...props} stored={null} /> : <Stored {...props} name={name} />}
    </Drawer>
  );
}

function Stored(props: DrawerProps & { name: string }) {
  const object = useObject(props.definition.path, props.name);
  if (object.error && !object.data) return <ErrorState error={object.error} retry={() => void object.refetch()} />;
  if (!object.data) return <Loading />;
  const { data } = object;
  return (
    <StoredForm
      {...props}
      newest={data}
      read={async () => (await object.refetch({ throwOnError: true })).data ?? data}
    />
  );
}

type StoredObject = EditedObject<ConfigurationObject> & { read: () => Promise<ConfigurationObject> };

/** Edits the stored object; what was typed stays, also when somebody else saves another version. */
function StoredForm({
  newest,
  read,
  ...props
}: DrawerProps & { newest: ConfigurationObject } & Pick<StoredObject, 'read'>) {
  const edited = useEditedObject(newest);
  return <DrawerForm key={edited.base.version} {...props} stored={{ ...edited, read }} />;
}

function DrawerForm({
  definition,
  name,
  stored,
  initial,
  mayChange,
  onClose,
  onSaved,
}: DrawerProps & { stored: StoredObject | null }) {
  const { t } = useLingui();
  const { path, oneOf = [] } = definition;
  const object = stored?.base ?? null;
  const [start] = useState<Fields>(object ? valuesOf(object) : (initial ?? {}));
  const [values, setValues] = useState(start);
  const [newName, setNewName] = useState('');
  const [showAll, setShowAll] = useState(false);
  const [isDeleting, setDeleting] = useState(false);
  const save = useSave(path);
  // Of its own, so that a conflict stays visible until it is resolved.
  const resolution = useSave(path);
  const isDeclared = object !== null && !isStored(object);
  const isReadOnly = isDeclared || !mayChange;
  const form = definition.schemaOf(values);
  const chosen = name ?? newName.trim();
  const variant = oneOf.find((each) => values[each] !== undefined);
  const body = name === null ? { name: chosen, ...values } : values;
  const hidden = [
    ...frame,
    'connector',
    'type',
    ...oneOf.filter((each) => each !== variant),
    ...(definition.hidden ?? []),
  ];
  const onStored = () => {
    notifications.show({ message: t`${chosen} was saved.` });
    onSaved?.(chosen);
    onClose();
  };
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    setShowAll(true);
    const element = event.currentTarget;
    // The problems are shown by the next rendering.
    setTimeout(() => element.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus());
    if (!form || chosen === '' || formProblems(body, form.schema, form.scope).some((each) => each.path !== 'name'))
      return;
    save.mutate({ id: name ?? undefined, version: object?.version, body }, { onSuccess: onStored });
  };
  const isChanged = JSON.stringify(values) !== JSON.stringify(start);
  useReportedChange(isChanged, stored?.setChanged);
  const isConflict =
    stored !== null && !save.isPending && (isVersionConflict(save.error) || (isChanged && stored.isOutdated));
  const testPath = definition.testPath?.(name);
  return (
    <form onSubmit={submit} noValidate>
      <Stack gap="md">
        {isDeclared && (
          <Alert color="gray" variant="light">
            <Trans>This is declared in {object.declared_at ?? object.origin} and is changed there.</Trans>
          </Alert>
        )}
        <fieldset disabled={isReadOnly} className="plain-fieldset">
          <Stack gap="sm">
            {name === null && (
              <TextInput
                label={t`Name`}
                required
                data-autofocus
                maxLength={256}
                value={newName}
                error={showAll && chosen === '' ? t`Required` : false}
                onChange={(event) => setNewName(event.currentTarget.value)}
              />
            )}
            {definition.chooser?.(values, setValues, name === null)}
            {form && oneOf.length > 0 && (
              <Select
                label={t`Type`}
                required
                error={showAll && variant === undefined ? t`Required` : false}
                data={namedChoices('type', oneOf)}
                value={variant ?? null}
                onChange={(next) => {
                  const rest = Object.fromEntries(Object.entries(values).filter(([field]) => !oneOf.includes(field)));
                  setValues(next ? { ...rest, [next]: {} } : rest);
                }}
              />
            )}
            {form && (oneOf.length === 0 || variant !== undefined) && (
              <GeneratedForm
                key={`${String(values.type ?? values.connector)} ${variant}`}
                schema={variant ? withRequired(form.schema, variant) : form.schema}
                scope={form.scope}
                value={values}
                onChange={setValues}
                hidden={hidden}
                first={usual}
                showAll={showAll}
                controls={definition.controls}
              />
            )}
          </Stack>
        </fieldset>
        {testPath && mayChange && <Test path={testPath} body={name === null ? body : undefined} />}
        {isConflict ? (
          <VersionConflict
            base={start}
            mine={values}
            read={async () => {
              const theirs = await stored.read();
              return {
                value: valuesOf(theirs),
                save: async (merged) => {
                  await resolution.mutateAsync({ id: chosen, version: theirs.version, body: merged });
                  onStored();
                },
                load: () => stored.load(theirs),
              };
            }}
          />
        ) : (
          save.error && (
            <Text size="sm" c="var(--tg-critical)" role="alert">
              {save.error.message}
            </Text>
          )
        )}
        <Group justify="space-between">
          <Group gap="xs">
            {!isReadOnly && (
              <Button type="submit" size="sm" loading={save.isPending} disabled={!form}>
                <Trans>Save</Trans>
              </Button>
            )}
            <ShowCall
              method={name === null ? 'POST' : 'PUT'}
              path={name === null ? path : objectPath(path, name)}
              body={body}
              ctl={`${definition.command} ${name === null ? 'add' : 'set'} ${chosen || 'NAME'} --from FILE.json`}
            />
          </Group>
          {name !== null && !isReadOnly && (
            <Button variant="default" leftSection={<IconTrash size={14} />} onClick={() => setDeleting(true)}>
              <Trans>Delete</Trans>
            </Button>
          )}
        </Group>
      </Stack>
      {isDeleting && name !== null && (
        <ConfirmDeletion
          title={<Trans>Delete {name}?</Trans>}
          action={<Trans>Delete</Trans>}
          call={{ path: objectPath(path, name), ctl: `${definition.command} delete ${name}` }}
          onClose={() => setDeleting(false)}
          invalidates={[[path]]}
          message={t`${name} was deleted.`}
          onDeleted={onClose}
        >
          <Text size="sm">{definition.deletion(name)}</Text>
        </ConfirmDeletion>
      )}
    </form>
  );
}

/** The schema with this field among the required ones, so that its settings are shown. */
function withRequired(schema: Schema, name: string): Schema {
  return { ...schema, required: [...(schema.required ?? []), name] };
}

function Test({ path, body }: { path: string; body?: Fields }) {
  const [outcome, setOutcome] = useState<TestOutcome | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [isPending, setPending] = useState(false);
  const run = async () => {
    setPending(true);
    setOutcome(null);
    setProblem(null);
    try {
      setOutcome(await send<TestOutcome>('POST', path, { body }));
    } catch (error) {
      setProblem((error as Error).message);
    } finally {
      setPending(false);
    }
  };
  const isGood = outcome !== null && (outcome.is_reachable ?? outcome.is_ok) === true;
  return (
    <div>
      <div className="row wrap">
        <Button
          variant="default"
          leftSection={<IconPlugConnected size={14} />}
          loading={isPending}
          onClick={() => void run()}
        >
          <Trans>Test</Trans>
        </Button>
        <span role="status">
          {outcome && (
            <StateBadge health={isGood ? 'good' : 'critical'}>
              {isGood ? <Trans>It works</Trans> : <Trans>It does not work</Trans>}
            </StateBadge>
          )}
        </span>
      </div>
      {(outcome?.detail || outcome?.error || problem) && (
        <Text size="sm" mt={4} c={isGood ? 'dimmed' : 'var(--tg-critical)'}>
          {outcome?.detail ?? outcome?.error ?? problem}
        </Text>
      )}
      {outcome?.data && outcome.data.length > 0 && (
        <pre className="test-rows" tabIndex={0}>
          {outcome.data.map((row) => JSON.stringify(row)).join('\n')}
        </pre>
      )}
    </div>
  );
}
