/** Creates, changes and deletes one configuration object, in a drawer. */

import { Alert, Button, Drawer, JsonInput, SegmentedControl, Stack, Text } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconTrash } from '@tabler/icons-react';
import { useState, type FormEvent, type ReactNode } from 'react';
import { ApiError, queryClient } from '../api/client';
import { isStored, objectPath, send, useSave, writable, type ConfigurationObject, type Fields } from '../api/objects';
import { useSchema } from '../api/schemas';
import type { SchemaScope } from '../api/json-schema';
import { ConfirmDeletion } from './confirm-deletion';
import { FormFields, useForm, type Field } from './object-form';
import { ctlFields, quoted, ShowCall, type Call } from './show-call';
import { Loading } from './states';
import { isVersionConflict, VersionConflict } from './version-conflict';

/** What the console knows about a kind of configuration objects. */
export interface ObjectKind {
  /** Such as `/api/v1/users`. */
  path: string;
  /** The subcommand of `tidegate ctl`. */
  command: string;
  idField: string;
  /** Names of the schemas of POST and PUT. */
  newSchema: string;
  inputSchema: string;
  fields: (isNew: boolean) => Field[];
  /** Values of the form for a new object. */
  initial?: Fields;
  /** Fields of the form that the node does not know. */
  pseudoFields?: string[];
  /** The values of a form as the node takes them. */
  toBody?: (values: Fields) => Fields;
  newTitle: string;
  /** What a deletion destroys. */
  deletion: (object: ConfigurationObject) => ReactNode;
}

interface EditorProps {
  kind: ObjectKind;
  /** Default: the id of the object. */
  title?: string;
  /** Absent: a new object. */
  object?: ConfigurationObject;
  /** Values of a new object, such as those of a copied one. */
  initial?: Fields;
  mayChange: boolean;
  /** Whether the drawer offers to delete the object; default: who may change it may delete it. */
  mayDelete?: boolean;
  /** Above the form: the state of the object. */
  children?: ReactNode;
  /** Further actions of an existing object. */
  actions?: ReactNode;
  onClose: () => void;
  /** After a new object was created; default: the drawer closes. */
  onCreated?: (object: ConfigurationObject) => void;
}

export function ObjectEditor(props: EditorProps) {
  const { kind, object, onClose } = props;
  const scope = useSchema(object ? kind.inputSchema : kind.newSchema);
  const id = object && String(object[kind.idField]);
  return (
    <Drawer opened onClose={onClose} position="right" size="lg" title={props.title ?? id ?? kind.newTitle}>
      {scope ? <EditorForm key={id} {...props} scope={scope} /> : <Loading />}
    </Drawer>
  );
}

function EditorForm({
  kind,
  object,
  initial,
  mayChange,
  mayDelete = true,
  children,
  actions,
  onClose,
  onCreated,
  scope,
}: EditorProps & { scope: SchemaScope }) {
  const { t } = useLingui();
  const known = Object.keys(scope.root.properties ?? {});
  const [edited, setEdited] = useState(object);
  const form = useForm(scope, kind.pseudoFields, object ? writable(object, known) : (initial ?? kind.initial ?? {}));
  const [view, setView] = useState('form');
  // The text of the JSON view begins again with each version that is loaded.
  const [loads, setLoads] = useState(0);
  const [isDeleting, setDeleting] = useState(false);
  const save = useSave(kind.path);
  // Of its own, so that a conflict stays visible until it is resolved.
  const resolution = useSave(kind.path);
  const id = object && String(object[kind.idField]);
  const isDeclared = object !== undefined && !isStored(object);
  const isReadOnly = isDeclared || !mayChange;
  const bodyOf = (values: Fields) => kind.toBody?.(values) ?? values;
  const body = bodyOf(form.values);
  const isConflict = isVersionConflict(save.error);
  const rejected =
    save.error instanceof ApiError && save.error.field
      ? { field: save.error.field, message: save.error.message }
      : undefined;
  const fields = kind.fields(object === undefined);
  // Problems of fields that the form does not show; JSON shows all of them.
  const hidden = form.hiddenProblems(fields.map((field) => field.name));
  const isRejectedFieldShown = fields.some((field) => field.name === rejected?.field.split(/[.[]/)[0]);

  const onSaved = (saved: ConfigurationObject) => {
    notifications.show({ message: object ? t`${id} was saved.` : t`Created.` });
    if (object === undefined && onCreated) onCreated(saved);
    else onClose();
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (form.submit()) save.mutate({ id, version: edited?.version, body }, { onSuccess: onSaved });
  };
  const current = () => send<ConfigurationObject>('GET', objectPath(kind.path, id ?? ''));

  return (
    <form onSubmit={submit} noValidate>
      <Stack gap="md">
        {children}
        {isDeclared && (
          <Alert color="gray" variant="light">
            <Trans>Declared in the configuration, and changed there: {object.declared_at ?? object.origin}</Trans>
          </Alert>
        )}
        <SegmentedControl
          size="xs"
          aria-label={t`View`}
          value={view}
          onChange={setView}
          data={[
            { value: 'form', label: t`Form` },
            { value: 'json', label: t`JSON` },
          ]}
        />
        {view === 'form' ? (
          <FormFields form={form} scope={scope} fields={fields} rejected={rejected} isDisabled={isReadOnly} />
        ) : (
          <JsonFields key={loads} values={form.values} onChange={form.setAll} isReadOnly={isReadOnly} />
        )}
        {(view === 'json' ? form.problems : hidden).length > 0 && (
          <div role="alert" className="state-critical">
            {(view === 'json' ? form.problems : hidden).map(({ path, message }) => (
              <div key={path}>
                <code>{path}</code> {message}
              </div>
            ))}
          </div>
        )}
        {isConflict && edited && (
          <VersionConflict
            base={bodyOf(writable(edited, known))}
            mine={body}
            read={async () => {
              const theirs = await current();
              return {
                value: bodyOf(writable(theirs, known)),
                save: async (merged) =>
                  onSaved(await resolution.mutateAsync({ id, version: theirs.version, body: merged })),
                load: () => {
                  form.setAll(writable(theirs, known));
                  setEdited(theirs);
                  setLoads((previous) => previous + 1);
                  save.reset();
                },
              };
            }}
          />
        )}
        {save.error && !isConflict && !(rejected && isRejectedFieldShown && view === 'form') && (
          <Text size="sm" c="var(--tg-critical)" role="alert">
            {save.error.message}
          </Text>
        )}
      </Stack>
      <div className="drawer-footer">
        <ShowCall {...saveCall(kind, id, body)} />
        <div className="row">
          {actions}
          {object && !isReadOnly && mayDelete && (
            <Button variant="default" leftSection={<IconTrash size={14} />} onClick={() => setDeleting(true)}>
              <Trans>Delete</Trans>
            </Button>
          )}
          {!isReadOnly && (
            <Button type="submit" loading={save.isPending} disabled={object !== undefined && !form.isChanged}>
              {object ? <Trans>Save</Trans> : <Trans>Create</Trans>}
            </Button>
          )}
        </div>
      </div>
      {isDeleting && object && id !== undefined && (
        <ConfirmDeletion
          title={<Trans>Delete {id}?</Trans>}
          action={<Trans>Delete</Trans>}
          call={deleteCall(kind, id)}
          onClose={() => setDeleting(false)}
          invalidates={[[kind.path]]}
          message={t`${id} was deleted.`}
          onDeleted={() => {
            queryClient.removeQueries({ queryKey: [kind.path, 'one', id] });
            onClose();
          }}
        >
          <Text size="sm">{kind.deletion(object)}</Text>
        </ConfirmDeletion>
      )}
    </form>
  );
}

/** All fields at once, as the node stores them. */
function JsonFields({
  values,
  onChange,
  isReadOnly,
}: {
  values: Fields;
  onChange: (values: Fields) => void;
  isReadOnly: boolean;
}) {
  const { t } = useLingui();
  const [text, setText] = useState(() => JSON.stringify(values, null, 2));
  const [isWrong, setWrong] = useState(false);
  return (
    <JsonInput
      aria-label={t`JSON`}
      autosize
      minRows={12}
      maxRows={32}
      classNames={{ input: 'mono' }}
      readOnly={isReadOnly}
      value={text}
      error={isWrong ? t`This is not a valid JSON object; the last valid text applies` : undefined}
      onChange={(next) => {
        setText(next);
        try {
          const parsed: unknown = JSON.parse(next);
          const isObject = typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed);
          setWrong(!isObject);
          if (isObject) onChange(parsed as Fields);
        } catch {
          setWrong(true);
        }
      }}
    />
  );
}

export function saveCall(kind: ObjectKind, id: string | undefined, body: Fields): Call {
  const { [kind.idField]: newId, ...rest } = body;
  const name = quoted(String(id ?? newId ?? kind.idField.toUpperCase()));
  const isNameless = id === undefined && newId === undefined;
  return {
    method: id === undefined ? 'POST' : 'PUT',
    path: id === undefined ? kind.path : objectPath(kind.path, id),
    body,
    ctl: `${kind.command} ${id === undefined ? 'add' : 'set'} ${isNameless ? '' : `${name} `}${ctlFields(rest)}`,
  };
}

export function deleteCall(kind: ObjectKind, id: string): Call {
  return { method: 'DELETE', path: objectPath(kind.path, id), ctl: `${kind.command} delete ${quoted(id)}` };
}
