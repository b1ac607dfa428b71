/** The list of a kind of configuration objects, with its editor. */

import { Badge, Button, Select, TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconSearch } from '@tabler/icons-react';
import { useState, type ReactNode } from 'react';
import { Link, useLocation, useSearchParams } from 'wouter';
import { isStored, useList, useObject, type ConfigurationObject, type ObjectFrame } from '../api/objects';
import { mayInNamespace, useCaller, type NamespaceRole } from '../api/session';
import { DataTable, pagesOf, type Column } from './data-table';
import { ObjectEditor, type ObjectKind } from './object-editor';
import { EmptyState, ErrorState } from './states';
import { useUrlState } from './url-state';

interface ObjectListProps<T extends ObjectFrame> {
  kind: ObjectKind;
  label: string;
  /** After the column with the id. */
  columns: Column<T>[];
  mayChange: boolean;
  /** What to do when there is none. */
  empty: { title: ReactNode; text: ReactNode };
  /** Whether the objects belong to namespaces. */
  isNamespaced?: boolean;
  /** The role in its namespace with which an object is changed; default: operator. */
  namespaceRole?: NamespaceRole;
  /** Where a row leads; default: it opens the editor. */
  rowHref?: (row: T) => string;
  /** Filters of the page, right of the search. */
  filters?: ReactNode;
  /** Which rows the page's filters leave; absent: no filter is set. */
  isKept?: (row: T) => boolean;
  /** Beside the button that creates an object. */
  actions?: ReactNode;
  /** In the editor, above the form. */
  details?: (object: ConfigurationObject) => ReactNode;
  editorActions?: (object: ConfigurationObject) => ReactNode;
  onCreated?: (object: ConfigurationObject) => void;
  every?: number;
  initialOrder?: string;
}

const refreshMs = 10_000;

export function ObjectList<T extends ObjectFrame>(props: ObjectListProps<T>) {
  const { t } = useLingui();
  const { kind, mayChange, onCreated } = props;
  const caller = useCaller();
  const [location] = useLocation();
  const [parameters] = useSearchParams();
  const [search, setSearch] = useUrlState('q');
  const [text] = useDebouncedValue(search.trim(), 200);
  const [namespace, setNamespace] = useUrlState('namespace');
  const [edited, setEdited] = useUrlState('edit');
  const [isNew, setNew] = useUrlState('new');
  const list = useList<T>(
    kind.path,
    { id_contains: text, ...(props.isNamespaced ? { namespace } : {}) },
    { every: props.every ?? refreshMs },
  );
  const idOf = (row: T) => String((row as unknown as ConfigurationObject)[kind.idField]);
  const editHref = (row: T) => {
    const next = new URLSearchParams(parameters);
    next.set('edit', idOf(row));
    return `${location}?${next.toString()}`;
  };
  const href = props.rowHref ?? editHref;
  const columns: Column<T>[] = [
    {
      id: kind.idField,
      header: kind.idField === 'username' ? t`Name` : kind.idField === 'name' ? t`Name` : t`Id`,
      sort: idOf,
      cell: (row) => (
        <span className="row">
          <Link href={href(row)} className="link">
            {idOf(row)}
          </Link>
          {!isStored(row) && (
            <Badge size="xs" variant="default" title={row.declared_at}>
              <Trans>configuration</Trans>
            </Badge>
          )}
        </span>
      ),
    },
    ...props.columns,
  ];
  const add = mayChange && (
    <Button leftSection={<IconPlus size={14} />} onClick={() => setNew('1')}>
      {kind.newTitle}
    </Button>
  );
  const isFiltered = text !== '' || namespace !== '' || props.isKept !== undefined;
  const rows = props.isKept ? list.rows?.filter(props.isKept) : list.rows;
  return (
    <>
      <DataTable
        name={kind.command}
        label={props.label}
        columns={columns}
        rowKey={idOf}
        rowHref={href}
        initialOrder={props.initialOrder}
        {...pagesOf(list)}
        rows={rows}
        toolbar={
          <>
            <TextInput
              aria-label={t`Search`}
              placeholder={t`Search`}
              leftSection={<IconSearch size={14} />}
              value={search}
              onChange={(event) => setSearch(event.currentTarget.value)}
              w={220}
            />
            {props.isNamespaced && <NamespaceSelect value={namespace} onChange={setNamespace} />}
            {props.filters}
            <div className="row wrap table-actions">
              {props.actions}
              {add}
            </div>
          </>
        }
        empty={
          isFiltered ? (
            <EmptyState title={<Trans>Nothing matches</Trans>}>
              <Trans>Change the search or the filters.</Trans>
            </EmptyState>
          ) : (
            <EmptyState title={props.empty.title} actions={add}>
              {props.empty.text}
            </EmptyState>
          )
        }
      />
      {isNew !== '' && mayChange && (
        <ObjectEditor
          kind={kind}
          mayChange
          onClose={() => setNew('')}
          onCreated={
            onCreated &&
            ((object) => {
              setNew('');
              onCreated(object);
            })
          }
        />
      )}
      {edited !== '' && (
        <Edited
          key={edited}
          kind={kind}
          id={edited}
          mayChange={(object) =>
            mayChange &&
            (typeof object.namespace !== 'string' ||
              mayInNamespace(caller, props.namespaceRole ?? 'operator', object.namespace))
          }
          details={props.details}
          actions={props.editorActions}
          onClose={() => setEdited('')}
        />
      )}
    </>
  );
}

function Edited({
  kind,
  id,
  mayChange,
  details,
  actions,
  onClose,
}: {
  kind: ObjectKind;
  id: string;
  mayChange: (object: ConfigurationObject) => boolean;
  details?: (object: ConfigurationObject) => ReactNode;
  actions?: (object: ConfigurationObject) => ReactNode;
  onClose: () => void;
}) {
  // What is edited does not change while it is edited; a conflict is noticed when it is saved.
  const [opened] = useState(() => Date.now());
  const object = useObject(kind.path, id);
  if (object.error && !object.data) return <ErrorState error={object.error} />;
  if (!object.data || object.dataUpdatedAt < opened - 2_000) return null;
  return (
    <Frozen object={object.data}>
      {(frozen) => (
        <ObjectEditor
          kind={kind}
          object={frozen}
          mayChange={mayChange(frozen)}
          onClose={onClose}
          actions={actions?.(object.data)}
        >
          {details?.(object.data)}
        </ObjectEditor>
      )}
    </Frozen>
  );
}

function Frozen({
  object,
  children,
}: {
  object: ConfigurationObject;
  children: (object: ConfigurationObject) => ReactNode;
}) {
  const [first] = useState(object);
  return <>{children(first)}</>;
}

/** Chooses a namespace, where there is more than one. */
export function NamespaceSelect({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const { t } = useLingui();
  const caller = useCaller();
  const isOnNode = caller.role !== null;
  const all = useList<{ id: string }>('/api/v1/namespaces', {}, { enabled: isOnNode });
  const names = isOnNode ? all.rows?.map((each) => each.id) : caller.namespaces.map((each) => each.namespace);
  if (!names || names.length < 2) return null;
  return (
    <Select
      aria-label={t`Namespace`}
      placeholder={t`Any namespace`}
      clearable
      searchable
      w={170}
      value={value || null}
      onChange={(next) => onChange(next ?? '')}
      data={names}
    />
  );
}
