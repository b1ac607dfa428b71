import {
  ActionIcon,
  Button,
  Drawer,
  JsonInput,
  MultiSelect,
  SegmentedControl,
  Select,
  Stack,
  Switch,
  Text,
  TextInput,
  Title,
} from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconDownload, IconPlus, IconTrash } from '@tabler/icons-react';
import { useState, type FormEvent, type ReactNode } from 'react';
import { useConditionalSave, withItem, withoutItem, type ReadValue } from '../../ui/conditional-save';
import { Confirm } from '../../ui/confirm';
import { download } from '../../ui/download';
import { DataTable, type Column } from '../../ui/data-table';
import { EmptyState } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { VersionConflict } from '../../ui/version-conflict';
import { itemProblem, parts, valueTypeText, type Item, type Part, type ThingModel } from './thing-model';
import { FieldRows, ValueTypeInput } from './value-type-input';

interface EditorProps {
  stored: ReadValue<ThingModel>;
  /** Reads the newest version. */
  read: () => Promise<ReadValue<ThingModel>>;
  mayChange: boolean;
}

/** What devices of a product report, can do and tell. */
export function ThingModelEditor({ stored, read, mayChange }: EditorProps) {
  const { t } = useLingui();
  const [chosen, setPart] = useUrlState('part', 'properties');
  // The model as it was when an item was opened: what is saved is a change of that.
  const [edited, setEdited] = useState<{ item?: Item; opened: ReadValue<ThingModel> } | null>(null);
  const [json, setJson] = useState<ReadValue<ThingModel> | null>(null);
  const model = stored.value;
  const part = parts.includes(chosen as Part) ? (chosen as Part) : 'properties';
  const items = model[part] ?? [];
  const texts: Record<Part, { label: string; add: string; title: ReactNode; text: ReactNode }> = {
    properties: {
      label: t`Properties`,
      add: t`New property`,
      title: <Trans>No properties yet</Trans>,
      text: <Trans>A property is a value that devices report, or that can be read and written.</Trans>,
    },
    functions: {
      label: t`Functions`,
      add: t`New function`,
      title: <Trans>No functions yet</Trans>,
      text: <Trans>A function is what devices can be told to do.</Trans>,
    },
    events: {
      label: t`Events`,
      add: t`New event`,
      title: <Trans>No events yet</Trans>,
      text: <Trans>An event is something that devices tell, such as a fault.</Trans>,
    },
    tags: {
      label: t`Tags`,
      add: t`New tag`,
      title: <Trans>No tags yet</Trans>,
      text: <Trans>A tag describes a device, such as its place.</Trans>,
    },
  };
  const own = texts[part];
  const columns: Column<Item>[] = [
    {
      id: 'id',
      header: t`Id`,
      sort: (item) => item.id,
      cell: (item) => (
        <button type="button" className="link-button mono" onClick={() => setEdited({ item, opened: stored })}>
          {item.id}
        </button>
      ),
    },
    { id: 'name', header: t`Name`, sort: (item) => item.name, cell: (item) => item.name || '–' },
    ...(part === 'functions'
      ? [
          {
            id: 'inputs',
            header: t`Inputs`,
            cell: (item: Item) =>
              item.inputs?.map((input) => `${input.id}: ${input.valueType?.type}`).join(', ') || '–',
          },
          { id: 'output', header: t`Result`, cell: (item: Item) => valueTypeText(item.output) },
        ]
      : [{ id: 'type', header: t`Type`, cell: (item: Item) => valueTypeText(item.valueType) }]),
    ...(part === 'properties'
      ? [
          {
            id: 'uses',
            header: t`Use`,
            cell: (item: Item) => {
              const uses = item.expands?.type;
              const names: Record<string, string> = { read: t`read`, write: t`write`, report: t`report` };
              const list = Array.isArray(uses) && uses.length > 0 ? uses.map(String) : Object.keys(names);
              return list.map((use) => names[use] ?? use).join(', ');
            },
          },
        ]
      : []),
    { id: 'description', header: t`Description`, cell: (item) => item.description || '–', isHidden: true },
  ];
  const add = mayChange && (
    <Button leftSection={<IconPlus size={14} />} onClick={() => setEdited({ opened: stored })}>
      {own.add}
    </Button>
  );
  return (
    <>
      <DataTable
        name={`model-${part}`}
        label={own.label}
        columns={columns}
        rows={items}
        rowKey={(item) => item.id}
        toolbar={
          <>
            <SegmentedControl
              size="xs"
              aria-label={t`Part of the model`}
              value={part}
              onChange={setPart}
              data={parts.map((each) => ({ value: each, label: `${texts[each].label} (${model[each]?.length ?? 0})` }))}
            />
            <div className="row wrap table-actions">
              <Button variant="default" onClick={() => setJson(stored)}>
                JSON
              </Button>
              {add}
            </div>
          </>
        }
        empty={
          <EmptyState title={own.title} actions={add}>
            {own.text}
          </EmptyState>
        }
      />
      {edited && (
        <ItemDrawer
          key={part}
          {...edited}
          part={part}
          title={own.add}
          read={read}
          mayChange={mayChange}
          onClose={() => setEdited(null)}
        />
      )}
      {json && <ModelJson stored={json} read={read} mayChange={mayChange} onClose={() => setJson(null)} />}
    </>
  );
}

interface ItemDrawerProps {
  part: Part;
  title: string;
  item?: Item;
  opened: ReadValue<ThingModel>;
  read: () => Promise<ReadValue<ThingModel>>;
  mayChange: boolean;
  onClose: () => void;
}

function newItem(part: Part): Item {
  if (part === 'functions') return { id: '', name: '', inputs: [] };
  return { id: '', name: '', valueType: { type: part === 'events' ? 'object' : part === 'tags' ? 'string' : 'float' } };
}

function ItemDrawer({ part, title, item, opened, read, mayChange, onClose }: ItemDrawerProps) {
  const { t } = useLingui();
  const [value, setValue] = useState<Item>(item ?? newItem(part));
  const [loads, setLoads] = useState(0);
  const [isDeleting, setDeleting] = useState(false);
  const [isSubmitted, setSubmitted] = useState(false);
  const edit = useConditionalSave(opened, read, onClose);
  const removal = useConditionalSave(opened, read, onClose);
  const set = (change: Partial<Item>) => setValue((previous) => ({ ...previous, ...change }));
  const others = (edit.value[part] ?? []).filter(({ id }) => id !== item?.id);
  const problem = itemProblem(value, others);
  const changed = (model: ThingModel) => ({ ...model, [part]: withItem(model[part] ?? [], item?.id, value) });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setSubmitted(true);
    if (problem === undefined) void edit.save(changed);
  };
  const load = (model: ThingModel) => {
    const theirs = model[part]?.find(({ id }) => id === item?.id);
    // They have removed it.
    if (item && !theirs) onClose();
    if (theirs) setValue(theirs);
    setLoads((previous) => previous + 1);
  };
  const uses = Array.isArray(value.expands?.type) ? (value.expands.type as string[]) : ['read', 'write', 'report'];
  return (
    <Drawer opened onClose={onClose} position="right" size="lg" title={item?.id ?? title}>
      <form onSubmit={submit} noValidate>
        <fieldset key={loads} disabled={!mayChange} className="plain-fieldset">
          <Stack gap="sm">
            <TextInput
              label={t`Id`}
              description={part === 'properties' ? t`The telemetry key.` : undefined}
              withAsterisk
              data-autofocus={item === undefined ? true : undefined}
              classNames={{ input: 'mono' }}
              value={value.id}
              error={
                problem === 'id-taken'
                  ? t`There is already one with this id`
                  : isSubmitted && problem === 'no-id'
                    ? t`Required`
                    : undefined
              }
              onChange={(event) => set({ id: event.currentTarget.value })}
            />
            <TextInput
              label={t`Name`}
              value={value.name ?? ''}
              onChange={(event) => set({ name: event.currentTarget.value })}
            />
            <TextInput
              label={t`Description`}
              value={value.description ?? ''}
              onChange={(event) => set({ description: event.currentTarget.value || undefined })}
            />
            {part === 'functions' ? (
              <>
                <Title order={3}>
                  <Trans>Inputs</Trans>
                </Title>
                <FieldRows fields={value.inputs ?? []} onChange={(inputs) => set({ inputs })} />
                <Switch
                  label={t`Has a result`}
                  checked={value.output !== undefined}
                  onChange={(event) => set({ output: event.currentTarget.checked ? { type: 'boolean' } : undefined })}
                />
                {value.output && (
                  <ValueTypeInput
                    label={t`Type of the result`}
                    value={value.output}
                    onChange={(output) => set({ output })}
                  />
                )}
              </>
            ) : (
              <ValueTypeInput
                label={t`Type`}
                value={value.valueType ?? { type: 'string' }}
                onChange={(valueType) => set({ valueType })}
              />
            )}
            {part === 'properties' && (
              <MultiSelect
                label={t`Use`}
                description={t`Whether it can be read and written, and whether devices report it.`}
                data={[
                  { value: 'read', label: t`read` },
                  { value: 'write', label: t`write` },
                  { value: 'report', label: t`report` },
                ]}
                value={uses}
                onChange={(type) => set({ expands: { ...value.expands, type } })}
              />
            )}
            {part === 'events' && (
              <Select
                label={t`Level`}
                clearable
                data={[
                  { value: 'ordinary', label: t`ordinary` },
                  { value: 'warn', label: t`warning` },
                  { value: 'urgent', label: t`urgent` },
                ]}
                value={typeof value.expands?.level === 'string' ? value.expands.level : null}
                onChange={(level) => set({ expands: { ...value.expands, level: level ?? undefined } })}
              />
            )}
          </Stack>
        </fieldset>
        {edit.isConflict ? (
          <VersionConflict {...edit.conflict(changed, load)} />
        ) : (
          edit.error && (
            <Text size="sm" c="var(--tg-critical)" role="alert">
              {edit.error.message}
            </Text>
          )
        )}
        {mayChange && (
          <div className="drawer-footer">
            {item ? (
              <Button variant="default" leftSection={<IconTrash size={14} />} onClick={() => setDeleting(true)}>
                <Trans>Remove from the model</Trans>
              </Button>
            ) : (
              <span />
            )}
            <Button type="submit" loading={edit.isPending}>
              <Trans>Save</Trans>
            </Button>
          </div>
        )}
      </form>
      {isDeleting && item && (
        <Confirm
          title={<Trans>Remove {item.id} from the model?</Trans>}
          action={<Trans>Remove from the model</Trans>}
          isPending={removal.isPending}
          error={removal.error}
          onClose={() => setDeleting(false)}
          onConfirm={() =>
            void removal.save((model) => ({ ...model, [part]: withoutItem(model[part] ?? [], item.id) }))
          }
        >
          <Text size="sm">
            <Trans>Its definition is lost. Values that are already stored stay.</Trans>
          </Text>
        </Confirm>
      )}
    </Drawer>
  );
}

/** The whole model as text: to copy, to paste one, to save a file. */
function ModelJson({ stored, read, mayChange, onClose }: EditorProps & { onClose: () => void }) {
  const { t } = useLingui();
  const [text, setText] = useState(() => JSON.stringify(stored.value, null, 2));
  const edit = useConditionalSave(stored, read, onClose);
  const parsed = (() => {
    try {
      const value: unknown = JSON.parse(text);
      return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as ThingModel) : undefined;
    } catch {
      return undefined;
    }
  })();
  const changed = (model: ThingModel) => parsed ?? model;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (parsed) void edit.save(changed);
  };
  return (
    <Drawer opened onClose={onClose} position="right" size="lg" title={<Trans>Thing model as JSON</Trans>}>
      <form onSubmit={submit}>
        <JsonInput
          aria-label={t`Thing model as JSON`}
          autosize
          minRows={16}
          maxRows={34}
          classNames={{ input: 'mono' }}
          readOnly={!mayChange}
          value={text}
          error={parsed ? !edit.isConflict && edit.error?.message : t`This is not valid JSON`}
          onChange={setText}
        />
        {edit.isConflict && (
          <VersionConflict {...edit.conflict(changed, (model) => setText(JSON.stringify(model, null, 2)))} />
        )}
        <div className="drawer-footer">
          <ActionIcon
            aria-label={t`Save as a file`}
            onClick={() => download('thing-model.json', text, 'application/json')}
          >
            <IconDownload size={16} />
          </ActionIcon>
          {mayChange && (
            <Button type="submit" loading={edit.isPending} disabled={!parsed}>
              <Trans>Save</Trans>
            </Button>
          )}
        </div>
      </form>
    </Drawer>
  );
}
