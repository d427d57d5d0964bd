// A dashboard as it stands in a JSON file, by the types that Grafana publishes. `Panel` leaves the options of a panel
// open there, so they are taken from the type of each panel that is in use.
import type * as schema from '@grafana/schema';
import type * as bargauge from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type * as heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as timeline from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

/** The same type with the text of each enum in place of the enum. */
type Json<T> = unknown extends T
  ? T
  : T extends string
    ? `${T}`
    : T extends (infer Item)[]
      ? Json<Item>[]
      : T extends object
        ? { [Key in keyof T]: Json<T[Key]> }
        : T;

/** What the data source for Prometheus reads; its own package publishes it with all of Grafana's interface. */
interface Query extends Omit<schema.DataQuery, 'datasource'> {
  datasource: { type: 'prometheus'; uid: '${datasource}' };
  editorMode: 'code';
  expr: string;
  format?: 'time_series' | 'table' | 'heatmap';
  instant: boolean;
  legendFormat?: string;
  range: boolean;
}

type Panel<Type extends string, Options, Field> = Omit<
  Json<schema.Panel>,
  'type' | 'options' | 'targets' | 'fieldConfig'
> & {
  type: Type;
  options: Json<Options>;
  targets: Query[];
  fieldConfig: Omit<Json<schema.FieldConfigSource>, 'defaults'> & {
    defaults: Omit<Json<schema.FieldConfig>, 'custom'> & { custom?: Json<Field> };
  };
};

export type StatPanel = Panel<'stat', stat.Options, never>;

type AnyPanel =
  | StatPanel
  | Panel<'bargauge', bargauge.Options, never>
  | Panel<'heatmap', heatmap.Options, heatmap.FieldConfig>
  | Panel<'state-timeline', timeline.Options, timeline.FieldConfig>
  | Panel<'table', table.Options, table.FieldConfig>
  | Panel<'timeseries', timeseries.Options, timeseries.FieldConfig>;

type Row = Omit<Json<schema.RowPanel>, 'panels'> & { panels: AnyPanel[] };

type Annotation =
  | Omit<Json<schema.AnnotationQuery>, 'target'>
  // Those that people make in Grafana, by their tags.
  | (Omit<Json<schema.AnnotationQuery>, 'target'> & {
      target: { limit: number; matchAny: boolean; tags: string[]; type: 'tags' };
    })
  | (Omit<Json<schema.AnnotationQuery>, 'target'> & {
      tagKeys: string;
      target: Query;
      textFormat: string;
      titleFormat: string;
      useValueForTime: boolean;
    });

export type Board = Omit<Json<schema.Dashboard>, 'panels' | 'annotations'> & {
  annotations: { list: Annotation[] };
  panels: (AnyPanel | Row)[];
};

// If one of these were taken, the check would see nothing.
const options: StatPanel['options'] = {
  colorMode: 'value',
  graphMode: 'none',
  justifyMode: 'auto',
  orientation: 'auto',
  percentChangeColorMode: 'standard',
  reduceOptions: { calcs: ['last'] },
  showPercentChange: false,
  textMode: 'auto',
  wideLayout: true,
};
// @ts-expect-error: no such mode
export const wrongValue: StatPanel['options'] = { ...options, colorMode: 'rainbow' };
// @ts-expect-error: no such option
export const wrongName: StatPanel['options'] = { ...options, colourMode: 'value' };
// @ts-expect-error: no such panel
export const wrongPanel: Board['panels'][number]['type'] = 'graph';
